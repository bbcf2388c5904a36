"""A run of real size by ``src/train.py``: the demo's policy in the shape of Qwen3-4B, its steps beside the plan.

No hub is needed: the policy computes what the demo's does, by 36 layers of 2,560 units; of its own are but the tokens.
So engine, update and optimizer meet real sizes, and held-out accuracy tells whether what they do is right.
"""

import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median

import torch
from figures import ROOT, Figure
from gpu_demo import NEEDED, PHASES, train
from hydra.types import RunMode
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

POCKET = ROOT / "models" / "pocket"
STEPS = 4


def shape(quick: bool) -> PretrainedConfig:
    """Qwen3-4B's; a small one with all that makes growing difficult where ``quick``."""
    config = AutoConfig.from_pretrained(ROOT / "conf" / "architecture" / "Qwen" / "Qwen3-4B-Base")
    if quick:
        config.update({"hidden_size": 256, "intermediate_size": 800, "num_hidden_layers": 6})
        config.update({"num_attention_heads": 8, "num_key_value_heads": 4})
        config.layer_types = config.layer_types[:6]
    return config


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


def grow(config: PretrainedConfig, folder: Path) -> None:
    """Write the demo's policy in the shape of ``config``, in bfloat16, as published models are."""
    small = AutoConfig.from_pretrained(POCKET)
    weights = Growth(small, config).weights(load_file(POCKET / "model.safetensors"))
    kept = ("vocab_size", "rope_parameters", "tie_word_embeddings", "eos_token_id", "pad_token_id", "bos_token_id")
    config.update({name: getattr(small, name) for name in kept} | {"dtype": "bfloat16"})
    folder.mkdir(parents=True)
    save_file({name: w.bfloat16() for name, w in weights}, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(POCKET).save_pretrained(folder)


#: Phases of a run, and those of a plan that they are.
PLANNED = {"rollout": ("prefill", "decode"), "sync": ("sync",), "check": ("check",), "update": ("update", "optimizer")}


def measure(quick: bool) -> Iterator[Figure | str]:
    for name in NEEDED:
        import_module(name)
    from oblr.commands.compose import composer
    from oblr.commands.plan import draft
    from oblr.plan.roofline import GPUS
    from oblr.record.curves import read_curves

    size, steps = ("small", 2) if quick else ("4B", STEPS)
    policy = ROOT / ".cache" / "gpu" / f"grown-{size}"
    if not policy.exists():
        unfinished = policy.with_suffix(".part")
        grow(shape(quick), unfinished)
        unfinished.rename(policy)
    overrides = [
        *(f"experiment={'pocket' if quick else 'oblr_qwen3_4b'}", f"policy.path={policy}", f"steps={steps}"),
        *("data=chain_sum", "reward=reasoning_gym", "rollout.max_new_tokens=48", "rollout.max_model_len=128"),
        *("planned.prompt=9", "planned.response=24", "eta0=1e-4"),
        *("callbacks.evaluation.every=1000", "callbacks.checkpoints.every=1000"),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "run"
        yield from train([*overrides, f"paths.output_dir={out}"], 240)
        curves = read_curves(out)
        with composer() as composed:
            cfg = composed("train", [*overrides, f"paths.output_dir={out}"], RunMode.RUN)
            duration = draft(cfg, None if quick else GPUS["h100"]).plan().duration
    label = f"run, {size}, N={cfg.rollout.prompts_per_step}, G={cfg.rollout.group_size}"
    for kind in ("sampled", "greedy"):
        accuracy = curves[f"eval/{kind}_accuracy"][1]
        yield Figure(f"{label}: held-out {kind} accuracy before", 100 * accuracy[0], "%")
        yield Figure(f"{label}: held-out {kind} accuracy after {steps} steps", 100 * accuracy[-1], "%")
    yield Figure(f"{label}: largest log-prob gap", max(curves["rollout/logprob_gap_max"][1]), "nats")
    for phase in PHASES:  # the first step warms up
        taken = median(curves[f"time/{phase}"][1][1:])
        yield Figure(f"{label}: {phase}", 1e3 * taken, "ms")
        if phase in PLANNED:
            predicted = sum(duration.phases[part] for part in PLANNED[phase])
            yield Figure(f"{label}: {phase}, predicted / measured", predicted / taken, "")
