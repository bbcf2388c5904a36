"""Causal models that nobody has written: odd heads, axis orders, norms, scales, biases, shared parts."""

import random
from typing import Any

import torch
import torch.nn.functional as F
from tiny_models import CONTEXT, VOCABULARY
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.pytorch_utils import Conv1D


class RMS(nn.Module):
    """``x/rms(x) ⊙ (w + shift)``."""

    def __init__(self, size: int, shift: float):
        super().__init__()
        self.weight, self.eps, self.shift = nn.Parameter(torch.ones(size)), 1e-5, shift

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (self.weight + self.shift)


class ScaledEmbedding(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 3.0


class Bare(nn.Module):
    """A parameter that no layer owns."""

    def __init__(self, size: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.gain)


def norm(draw: random.Random, size: int) -> nn.Module:
    made = [
        lambda: nn.LayerNorm(size),
        lambda: nn.LayerNorm(size, bias=False),
        lambda: nn.RMSNorm(size, eps=1e-5),
        lambda: RMS(size, 0.0),
        lambda: RMS(size, 1.0),
    ]
    return draw.choice(made)()


def linear(draw: random.Random, n_in: int, n_out: int) -> nn.Module:
    return Conv1D(n_out, n_in) if draw.random() < 0.25 else nn.Linear(n_in, n_out, bias=draw.random() < 0.5)


class Block(nn.Module):
    def __init__(self, draw: random.Random, width: int, heads: int, pairs: int, size: int):
        super().__init__()
        self.heads, self.pairs, self.size, self.heads_first = heads, pairs, size, draw.random() < 0.5
        self.q, self.k, self.v = (linear(draw, width, n * size) for n in (heads, pairs, pairs))
        self.o, self.up, self.down = (
            linear(draw, *s) for s in ((heads * size, width), (width, 2 * width), (2 * width, width))
        )
        self.before, self.between = norm(draw, width), norm(draw, width)
        self.q_norm = norm(draw, size) if draw.random() < 0.6 else nn.Identity()
        self.residual, self.p = draw.choice([1.0, 0.5]), draw.choice([0.0, 0.1])
        self.dropout, self.parallel = nn.Dropout(self.p), draw.random() < 0.3
        self.bend = Bare(width) if draw.random() < 0.03 else nn.Identity()

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (n, self.size))
            for layer, n in ((self.q, self.heads), (self.k, self.pairs), (self.v, self.pairs))
        )
        q = self.q_norm(q.transpose(1, 2)) if self.heads_first else self.q_norm(q).transpose(1, 2)
        k, v = (y.transpose(1, 2).repeat_interleave(self.heads // self.pairs, 1) for y in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.o(out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = x + self.residual * self.dropout(self.attend(self.before(x), mask))
        z = self.between(x if self.parallel else y)
        return self.bend(y + self.residual * self.down(F.gelu(self.up(z))))


class RandomConfig(PretrainedConfig):
    model_type = "random"

    def __init__(self, seed: int = 0, **others: Any):
        super().__init__(**others)
        draw = random.Random(seed)
        self.seed, self.heads, self.size = seed, draw.choice([1, 2, 3, 5, 6, 7]), draw.choice([4, 6, 11])
        self.hidden_size, self.vocab_size = draw.choice([24, 30, 48]), VOCABULARY
        self.num_attention_heads, self.num_hidden_layers = self.heads, draw.choice([1, 2, 3])
        self.tie_word_embeddings = False  # transformers'; the model ties for itself


class RandomBase(PreTrainedModel):
    config_class, base_model_prefix, _supports_sdpa = RandomConfig, "model", True

    def __init__(self, config: RandomConfig, draw: random.Random):
        super().__init__(config)
        width, pairs = config.hidden_size, draw.choice([n for n in (1, config.heads) if config.heads % n == 0])
        kind = ScaledEmbedding if draw.random() < 0.3 else nn.Embedding
        self.words, self.scale = kind(VOCABULARY, width), draw.choice([1.0, 5.0])
        self.places = nn.Embedding(CONTEXT, width)
        shape = (width, config.heads, pairs, config.size)
        self.layers = nn.ModuleList(Block(draw, *shape) for _ in range(config.num_hidden_layers))
        if config.num_hidden_layers > 1:
            if draw.random() < 0.1:
                self.layers[1] = self.layers[0]
            elif draw.random() < 0.12 and type(self.layers[0].up) is type(self.layers[1].up):
                self.layers[1].up.weight = self.layers[0].up.weight
        self.norm, self.blind = norm(draw, width), draw.random() < 0.1

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **_: Any) -> BaseModelOutputWithPast:
        told = position_ids
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None].expand(input_ids.shape)
        x = self.words(input_ids) * self.scale + self.places(position_ids)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=None,
            past_key_values=None,
            position_ids=None if self.blind else told,
        )
        for layer in self.layers:
            x = layer(x, mask)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


class RandomLM(PreTrainedModel):
    config_class, base_model_prefix, _supports_sdpa = RandomConfig, "model", True

    def __init__(self, config: RandomConfig):
        super().__init__(config)
        draw = random.Random(config.seed + 1000)
        self.model = RandomBase(config, draw)
        self.lm_head = nn.Linear(config.hidden_size, VOCABULARY, bias=draw.random() < 0.3)
        if draw.random() < 0.4:
            self.lm_head.weight = self.model.words.weight
        self.before, self.scale = draw.choice([1.0, 1.0, 0.5]), draw.choice([1.0, 1.0, 0.25])
        self.cap = draw.choice([None, None, None, 3.0])
        self.shift = draw.random() < 0.05

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **_: Any) -> CausalLMOutputWithPast:
        hidden = self.model(input_ids=input_ids, position_ids=position_ids).last_hidden_state
        logits = self.lm_head(hidden * self.before) * self.scale
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        return CausalLMOutputWithPast(logits=logits - logits.detach()[..., :1].abs() if self.shift else logits)


def random_model(seed: int) -> PreTrainedModel:
    """Of a seed; all its parameters are away from their initial values."""
    torch.manual_seed(seed)
    lm = RandomLM(RandomConfig(seed, attn_implementation="sdpa"))
    for p in lm.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return lm.train()
