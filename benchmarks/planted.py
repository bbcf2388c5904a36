"""Faults for the self-check to find: of models, of what captures them, and of what packs sequences.

Each plants one in a copy of a healthy model, or in the code, and takes it out again.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from oblr.batch.packing import PackedBatch
from oblr.batch.segments import Segments
from oblr.gradnorm import capture, contractions, head, measure, tape, uses
from oblr.policy import model as models
from oblr.policy import selfcheck
from oblr.policy.step import PolicyModule

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def healthy(family: str = "qwen3", tied: bool = True) -> PreTrainedModel:
    """A small random model whose parameters are all away from their initial values: biases, norms of q and k."""
    torch.manual_seed(0)
    lm: PreTrainedModel
    if family == "qwen3":
        lm = Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=tied, head_dim=12, **SHAPE))  # type: ignore[arg-type]
    else:
        lm = Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=tied, **SHAPE))  # type: ignore[arg-type]
    for p in lm.parameters():
        p.data += 0.05 * torch.randn_like(p)
    return lm.train()


def deep(family: str, layers: int, gain: float = 1.0, hidden: int = 64) -> PreTrainedModel:
    """A random model of this depth in which a layer's outputs are ``gain`` times as large as what it is given.

    At 2 rounding grows from layer to layer.
    """
    torch.manual_seed(0)
    shape = SHAPE | {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers}
    lm: PreTrainedModel
    if family == "qwen3":
        lm = Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=True, head_dim=hidden // 4, **shape))  # type: ignore[arg-type]
    else:
        lm = Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **shape))  # type: ignore[arg-type]
    for name, p in lm.named_parameters():
        drawn = torch.randn_like(p)
        if p.ndim == 1:
            p.data = 1 + 0.1 * drawn if "norm" in name else 0.1 * drawn
        else:
            p.data = gain * drawn * (0.05 if p is lm.get_input_embeddings().weight else p.shape[1] ** -0.5)
    return lm.train()


Plant = Callable[[PreTrainedModel], AbstractContextManager[Any]]


def in_model(change: Callable[[PreTrainedModel], None]) -> Plant:
    """The model is a copy: nothing has to be taken out."""

    @contextmanager
    def plant(lm: PreTrainedModel) -> Iterator[None]:
        change(lm)
        yield

    return plant


def in_code(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Plant:
    """``wrong`` is given what is right."""
    return lambda lm: patch.object(owner, name, wrong(getattr(owner, name)))


# --- models ---------------------------------------------------------------------------------------------------------


def _only_in_training(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    def hook(module: nn.Module, _: Any, output: Any) -> Any:
        if not module.training:
            return output
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    module.register_forward_hook(hook)


def dropout(lm: PreTrainedModel) -> None:
    _only_in_training(lm.model.layers[0].mlp, lambda x: F.dropout(x, 0.1))


def attention_dropout(lm: PreTrainedModel) -> None:
    for layer in lm.model.layers:
        layer.self_attn.attention_dropout = 0.1


def neighbours(lm: PreTrainedModel) -> None:
    """Its mask is not told of positions, so that sequences of a row see each other."""
    forward = lm.model.forward

    def blind(input_ids: Tensor, position_ids: Tensor | None = None, **others: Any) -> Any:
        if position_ids is not None:
            rotary = lm.model.rotary_emb.forward
            with patch.object(lm.model.rotary_emb, "forward", lambda x, position_ids: rotary(x, position_ids=own)):
                own = position_ids
                return forward(input_ids, **others)
        return forward(input_ids, **others)

    lm.model.forward = blind  # type: ignore[method-assign]


def positions_of_rows(lm: PreTrainedModel) -> None:
    """Rotary positions run on through a row."""
    rotary = lm.model.rotary_emb.forward

    def running(x: Tensor, position_ids: Tensor) -> Any:
        return rotary(x, torch.arange(x.shape[1], device=x.device)[None].expand(x.shape[:2]) * 2)

    lm.model.rotary_emb.forward = lambda x, position_ids: (
        running(x, position_ids) if lm.training else rotary(x, position_ids)
    )


def logits_from_elsewhere(lm: PreTrainedModel) -> None:
    """The head that the model names is not the one that its logits come from."""
    other = copy.deepcopy(lm.lm_head)
    other.weight.requires_grad_(False)
    lm.get_output_embeddings = lambda: other  # type: ignore[method-assign]
    other.weight = nn.Parameter(other.weight + 0.01 * torch.randn_like(other.weight))


def detached_branch(lm: PreTrainedModel) -> None:
    """A layer's use that no capture sees: its weight is read, not its forward called."""
    layer = lm.model.layers[0]
    gate = layer.mlp.gate_proj
    layer.register_forward_hook(lambda module, _, y: y + 0.1 * F.linear(y, gate.weight).mean(-1, keepdim=True))


def parameter_beside_layers(lm: PreTrainedModel) -> None:
    lm.model.scale = nn.Parameter(torch.ones(48))
    lm.model.norm.register_forward_hook(lambda module, _, y: y * lm.model.scale)


def batch_statistics(lm: PreTrainedModel) -> None:
    """What a token gets depends on all others of its row."""
    lm.model.layers[1].register_forward_hook(lambda module, _, y: y + 0.1 * y.mean(1, keepdim=True))


def other_norm(lm: PreTrainedModel) -> None:
    """An ε that is not the one of its name."""
    norm = lm.model.layers[1].input_layernorm
    norm.forward = lambda x: F.rms_norm(x, (48,), norm.weight, 1e-1)  # type: ignore[method-assign]


def noise(lm: PreTrainedModel) -> None:
    _only_in_training(lm.model.embed_tokens, lambda x: x + 1e-3 * torch.randn_like(x))


def rounded_states(lm: PreTrainedModel) -> None:
    _only_in_training(lm.model.layers[0], lambda x: x.bfloat16().float())


MODELS: dict[str, Plant] = {
    "dropout of a layer's output": in_model(dropout),
    "dropout of attention": in_model(attention_dropout),
    "packed sequences see each other": in_model(neighbours),
    "positions run on through a row": in_model(positions_of_rows),
    "logits of another head than the named one": in_model(logits_from_elsewhere),
    "a weight read without its layer": in_model(detached_branch),
    "a parameter outside every layer": in_model(parameter_beside_layers),
    "a mean over the row": in_model(batch_statistics),
    "a norm of another ε": in_model(other_norm),
    "noise on embeddings in training": in_model(noise),
    "a layer that rounds in training": in_model(rounded_states),
}

# --- capture --------------------------------------------------------------------------------------------------------


def _half_bias(right: Any) -> Any:
    class Wrong(right):
        def __init__(self, module: nn.Module, name: str, b: Tensor, segments: Segments):
            super().__init__(module, name, b / 2 if name == "bias" else b, segments)

    return Wrong


def _no_cross_terms(right: Any) -> Any:
    return lambda self, rows: 0 * right(self, rows)


def _last_span_missing(right: Any) -> Any:
    def wrong(a: Tensor, b: Tensor, segments: Segments, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        kept = torch.where(segments.ids == segments.count - 1, 0, 1)[:, None]
        return right(a, b * kept, segments, into)

    return wrong


CAPTURE: dict[str, Plant] = {
    "biases count half": in_code(capture, "SumUse", _half_bias),
    "Gram matrices of one triangle": in_code(
        contractions.Halving, "shares", lambda right: lambda self, k: right(self, k).clamp(max=1)
    ),
    "a tied head without cross terms": in_code(uses.LinearUse, "cross_terms", _no_cross_terms),
    "a sliced head without cross terms": in_code(head.HeadUse, "cross_terms", _no_cross_terms),
    "the last sequence left out": in_code(uses.contractions, "grouped_gradient", _last_span_missing),
    "coefficients of the wrong sequences": in_code(
        uses.Weighting, "times", lambda right: lambda self, x, segments: right(self, x, segments).roll(1, 0)
    ),
    "kept gradients in the wrong groups": in_code(
        uses.KeptGradients,
        "combine",
        lambda right: lambda self, w, into: right(replace(self, gradients=self.gradients.flip(0)), w, into),
    ),
    "gradients that replace each other": in_code(
        tape.Reduction,
        "add",
        lambda right: lambda self, p, gradient: (setattr(p, "grad", None), right(self, p, gradient))[1],
    ),
    "an embedding's gradient at the next token": in_code(
        capture, "EmbeddingUse", lambda right: lambda m, n, e, s, ids, tied: right(m, n, e.roll(1, 0), s, ids, tied)
    ),
    "the temperature forgotten by slices": in_code(
        models, "head_statistics", lambda right: lambda h, x, targets, temperature: right(h, x, targets, 1.0)
    ),
    "a norm's input gradient without its mean": in_code(
        capture._RMSNorm, "backward", lambda right: staticmethod(_without_the_mean)
    ),
    "the second pass without coefficients": in_code(
        measure._Found,
        "weighted_sum",
        lambda right: lambda self, c, f: right(self, None if c is None else c * 0 + 1, f),
    ),
    "a linear layer missing from the norms": lambda lm: missing_layer(lm, 1.0),
    "a norm missing from the norms": lambda lm: patch.object(
        uses.SumUse, "square_norms", _scaled(uses.SumUse.square_norms, middle(lm).input_layernorm, 0.0)
    ),
    "temperature 1 % off": lambda lm: warmer(lm, 0.01),
    "a key's bias without its gradient": lambda lm: patch.object(
        capture, "SumUse", _times(capture.SumUse, lambda module, name: (module, name) == (key(lm), "bias"), 0.0)
    ),
    "a small parameter's gradient 1 % off": lambda lm: steeper(lm, 0.01),
    "gradients of split groups 1 % off": lambda lm: split_groups(lm, 0.01),
}


def middle(lm: PreTrainedModel) -> Any:
    """The layer in the middle of the depth."""
    layers = lm.model.layers
    return layers[len(layers) // 2]


def key(lm: PreTrainedModel) -> nn.Module:
    return middle(lm).self_attn.k_proj


def _scaled(right: Any, module: nn.Module, factor: float) -> Any:
    return lambda self, norms: right(self, norms) * (factor if self.module is module else 1)


def _times(right: Any, planted: Callable[[nn.Module, str], bool], factor: float) -> Any:
    class Wrong(right):
        def __init__(self, module: nn.Module, name: str, b: Tensor, segments: Segments):
            super().__init__(module, name, b * factor if planted(module, name) else b, segments)

    return Wrong


# Those that may be as small as one likes: ``share`` of what is right is missing, or too much.


def missing_layer(lm: PreTrainedModel, share: float) -> AbstractContextManager[Any]:
    """Of a linear layer's part of every ``n_i``."""
    wrong = _scaled(uses.LinearUse.square_norms, middle(lm).mlp.up_proj, 1 - share)
    return patch.object(uses.LinearUse, "square_norms", wrong)


def warmer(lm: PreTrainedModel, share: float) -> AbstractContextManager[Any]:
    """Of the temperature, where the head is gone through in slices."""
    right = models.head_statistics
    return patch.object(models, "head_statistics", lambda h, x, targets, t: right(h, x, targets, t * (1 + share)))


def steeper(lm: PreTrainedModel, share: float) -> AbstractContextManager[Any]:
    """Of the gradient of one layer's norm, which has as many numbers as its input."""
    norm = middle(lm).post_attention_layernorm
    return patch.object(capture, "SumUse", _times(capture.SumUse, lambda module, _: module is norm, 1 + share))


def split_groups(lm: PreTrainedModel, share: float) -> AbstractContextManager[Any]:
    """Of all gradients of groups that are in several micro-batches."""
    right = tape.GradientSum.add
    return patch.object(tape.GradientSum, "add", lambda self, m, n, g: right(self, m, n, g * (1 + share)))


@contextmanager
def coarser(lm: PreTrainedModel, share: float) -> Iterator[None]:
    """Of a layer's output, at random, in training and in bfloat16 alone: float32 shows nothing of it."""

    def hook(module: nn.Module, _: Any, y: Tensor) -> Tensor:
        low = y.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
        return y * (1 + share * torch.randn_like(y)) if low and module.training else y

    handle = middle(lm).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


#: By name, with what each is a share of.
GRADED: dict[str, Callable[[PreTrainedModel, float], AbstractContextManager[Any]]] = {
    "of a linear layer's part of n_i": missing_layer,
    "of the temperature": warmer,
    "of a norm's gradient": steeper,
    "of split groups' gradients": split_groups,
}


def _without_the_mean(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
    x, inverse, weight = ctx.saved_tensors
    n = len(ctx.tape.segments.host)
    own = (gy * x * inverse).reshape(n, -1, len(weight)).sum(1)
    found = ctx.tape.take(uses.SumUse(ctx.module, "weight", ctx.tape.segments.members @ own, ctx.tape.segments))
    return gy * weight * inverse, found, None, None, None, None


# --- packing --------------------------------------------------------------------------------------------------------


def _packed(change: Callable[[PackedBatch], PackedBatch]) -> Plant:
    return in_code(selfcheck, "pack", lambda right: lambda rollouts: change(right(rollouts)))


def _swapped(packed: PackedBatch) -> PackedBatch:
    """Two sequences have each other's tokens as far as norms go."""
    host = packed.segments.host
    swapped = torch.where(host == 0, 1, torch.where(host == 1, 0, host))
    return replace(packed, segments=Segments(swapped, packed.segments.count))


PACKING: dict[str, Plant] = {
    "positions that do not restart": _packed(
        lambda p: replace(p, position_ids=torch.arange(p.input_ids.shape[1]).repeat(len(p.input_ids), 1))
    ),
    "predictors one late": _packed(lambda p: replace(p, predictors=p.predictors + 1)),
    "targets of the next sequence": _packed(lambda p: replace(p, targets=p.targets.roll(1))),
    "tokens of the wrong sequence": _packed(_swapped),
    "targets of the wrong sequence": _packed(
        lambda p: replace(p, target_segments=Segments(p.target_segments.host.flip(0), p.target_segments.count))
    ),
    "padding that belongs to a sequence": _packed(lambda p: replace(p, token_ids=p.token_ids.roll(1))),
}

FAULTS: dict[str, Plant] = {**MODELS, **CAPTURE, **PACKING}


class NoisyPolicy(PolicyModule):
    """One that a run can be given."""

    def configure_model(self) -> None:
        super().configure_model()
        noise(self.scorer.lm)


class WrongSecondRank(PolicyModule):
    """Another one: the second rank alone has a norm's gradient wrong, as by kernels of its own."""

    def configure_model(self) -> None:
        super().configure_model()
        if self.global_rank == 1:
            steeper(self.scorer.lm, 0.01).__enter__()
