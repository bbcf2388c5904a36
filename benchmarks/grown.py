"""The demo's policy in a larger shape that computes the same function: it answers like a policy that can learn."""

from collections.abc import Iterator
from pathlib import Path

import torch
from figures import ROOT
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

POCKET = ROOT / "models" / "pocket"


class Growth:
    """Copies of a small policy's units in a larger one: outputs are repeated, inputs are their mean."""

    def __init__(self, small: PretrainedConfig, large: PretrainedConfig):
        self.small, self.large = small, large
        self.copies = large.hidden_size // small.hidden_size
        # Every fourth pair of a head of 128 turns as the pairs of one of 32 do.
        half = small.head_dim // 2
        pairs = torch.arange(half) * (large.head_dim // small.head_dim)
        self.places = torch.cat([pairs, large.head_dim // 2 + pairs])
        shared, own = (one.num_attention_heads // one.num_key_value_heads for one in (large, small))
        self.keys = torch.arange(large.num_key_value_heads) % small.num_key_value_heads
        self.queries = (self.keys[:, None] * own + torch.arange(shared) % own).flatten()

    def read(self, weight: Tensor) -> Tensor:
        """Columns for all copies of the hidden state, [m, hidden]."""
        return weight.repeat(1, self.copies) / self.copies

    def heads(self, weight: Tensor, which: Tensor) -> Tensor:
        """Rows of heads, [heads · head_dim, n]."""
        parts = torch.zeros(len(which), self.large.head_dim, weight.shape[1])
        parts[:, self.places] = weight.unflatten(0, (-1, self.small.head_dim))[which]
        return parts.flatten(0, 1)

    def head_scale(self, weight: Tensor, both: float = 1.0) -> Tensor:
        wide = torch.zeros(self.large.head_dim)
        wide[self.places] = weight * (self.small.head_dim / self.large.head_dim) ** 0.5 * both
        return wide

    def units(self, weight: Tensor) -> Tensor:
        """Rows of an MLP's units, [intermediate, n]."""
        repeated = weight.repeat(self.large.intermediate_size // len(weight), 1)
        return torch.cat([repeated, torch.zeros(self.large.intermediate_size - len(repeated), weight.shape[1])])

    def block(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        queries = self.large.num_attention_heads // self.small.num_attention_heads
        units = self.large.intermediate_size // self.small.intermediate_size
        # Products of queries and keys are over the root of a head's size, which is larger.
        sharper = (self.large.head_dim / self.small.head_dim) ** 0.5
        q, k, v, o = (weights[f"self_attn.{name}_proj.weight"] for name in "qkvo")
        return {
            "input_layernorm.weight": weights["input_layernorm.weight"].repeat(self.copies),
            "post_attention_layernorm.weight": weights["post_attention_layernorm.weight"].repeat(self.copies),
            "self_attn.q_norm.weight": self.head_scale(weights["self_attn.q_norm.weight"], sharper),
            "self_attn.k_norm.weight": self.head_scale(weights["self_attn.k_norm.weight"]),
            "self_attn.q_proj.weight": self.heads(self.read(q), self.queries),
            "self_attn.k_proj.weight": self.heads(self.read(k), self.keys),
            "self_attn.v_proj.weight": self.heads(self.read(v), self.keys),
            "self_attn.o_proj.weight": self.heads(o.mT, self.queries).mT.repeat(self.copies, 1) / queries,
            "mlp.gate_proj.weight": self.units(self.read(weights["mlp.gate_proj.weight"])),
            "mlp.up_proj.weight": self.units(self.read(weights["mlp.up_proj.weight"])),
            "mlp.down_proj.weight": self.units(weights["mlp.down_proj.weight"].mT).mT.repeat(self.copies, 1) / units,
        }

    def weights(self, small: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        yield "model.embed_tokens.weight", small["model.embed_tokens.weight"].repeat(1, self.copies)
        yield "model.norm.weight", small["model.norm.weight"].repeat(self.copies) / self.copies  # the tied head adds up
        for k in range(self.large.num_hidden_layers):
            known = min(k, self.small.num_hidden_layers - 1)
            prefix = f"model.layers.{known}."
            block = self.block({n.removeprefix(prefix): w for n, w in small.items() if n.startswith(prefix)})
            if k != known:  # a layer that adds nothing
                for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                    block[name].zero_()
            for name, weight in block.items():
                yield f"model.layers.{k}.{name}", weight


def grow(config: PretrainedConfig, folder: Path, dtype: torch.dtype) -> None:
    """Write the demo's policy in the shape of ``config``."""
    small = AutoConfig.from_pretrained(POCKET)
    weights = Growth(small, config).weights(load_file(POCKET / "model.safetensors"))
    kept = ("vocab_size", "rope_parameters", "tie_word_embeddings", "eos_token_id", "pad_token_id", "bos_token_id")
    config.update({name: getattr(small, name) for name in kept} | {"dtype": str(dtype).removeprefix("torch.")})
    folder.mkdir(parents=True)
    save_file({name: w.to(dtype).contiguous() for name, w in weights}, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(POCKET).save_pretrained(folder)
