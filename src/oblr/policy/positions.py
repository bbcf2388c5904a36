"""Where a model computes something else once sequences, or the rows that hold them, are long enough.

Short probes see nothing of it. So windows are made short while the probes run, a sequence beside them is moved to the
last position that a run can reach, and one row is as long as the context.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from oblr.batch.packing import PackedBatch, lay_out, pack
from oblr.batch.types import Rollout, TokenStatistics
from oblr.errors import SettingError

#: What a window is while probes run: several times shorter than they are.
WINDOW = 9
#: Most tokens of a row as long as the context, and parameters times tokens of it, that a self-check still tries:
#: seconds on a CPU. Attention costs the square of the tokens.
ROW = 2048
MOST = 2e11


def context_of(config: PretrainedConfig) -> int | None:
    """Positions that the model has, tokens; None: it does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def rope_switch(config: PretrainedConfig) -> tuple[str, int] | None:
    """The rope type whose frequencies follow the longest position there is, and the length from which they do, tokens.

    transformers chooses one set of frequencies for a whole batch (``dynamic_rope_update``), generation keeps keys that
    were made with another set, and vLLM chooses by the longest that a sequence may become.
    """
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or {}
    found = []
    for of_layers in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        kind = str(of_layers.get("rope_type", "default"))
        length = None
        if kind == "longrope":
            length = of_layers.get("original_max_position_embeddings")
        elif "dynamic" in kind:
            length = context_of(config)
        if length is not None:
            found.append((kind, int(length)))
    return min(found, key=lambda pair: pair[1], default=None)


def reach_of(config: PretrainedConfig) -> int | None:
    """The longest sequence, tokens, where nobody says: the context, and beyond every switch."""
    context, switch = context_of(config), rope_switch(config)
    return context if switch is None else max(context or 0, switch[1] + 1)


def check_lengths(config: PretrainedConfig, max_model_len: int) -> None:
    """Whether what a sequence's positions mean depends on that sequence alone, in the policy and in any engine.

    Raises:
        SettingError: a sequence of ``max_model_len`` tokens is beyond the policy's context or its rope's switch.
    """
    context, switch = context_of(config), rope_switch(config)
    if context is not None and max_model_len > context:
        raise SettingError(
            "rollout.max_model_len", f"{max_model_len} tokens exceed the policy's context of {context}", "lower it"
        )
    if switch is not None and max_model_len > switch[1]:
        raise SettingError(
            "rollout.max_model_len",
            f"beyond {switch[1]} tokens this policy's {switch[0]} gives all sequences of a batch the frequencies of "
            f"the longest, and {max_model_len} are allowed",
            f"set it to {switch[1]} or less, and rollout.max_new_tokens below it",
        )


def longest_row(lm: nn.Module) -> int | None:
    """Most tokens that a row may have, where the model looks its causal mask up in a table; else None."""
    sides = [buffer.shape[-2:] for buffer in lm.buffers() if buffer.ndim > 1]
    context = context_of(lm.config) if sides else None  # type: ignore[arg-type]
    return context if any(side[0] == side[1] == context for side in sides) else None


def is_window(name: str, value: Any) -> bool:
    """Whether a setting of a model is a number of tokens from which attention is cut off, or scaled."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    width = ("window" in name and "layer" not in name and "pattern" not in name) or name == "local_attention"
    return width or "attention_chunk" in name or name == "floor_scale"


@contextmanager
def short_windows(lm: nn.Module, reach: int | None) -> Iterator[None]:
    """Every window that is shorter than ``reach`` tokens (None: any) is :data:`WINDOW` meanwhile."""
    owners: dict[int, Any] = {}
    for module in lm.modules():
        config = getattr(module, "config", None)
        owners |= {id(owner): owner for owner in (module, config) if hasattr(owner, "__dict__")}
    before = [
        (owner, name, value)
        for owner in owners.values()
        for name, value in vars(owner).items()
        if is_window(name, value) and WINDOW < value < (reach or value + 1)
    ]
    try:
        for owner, name, _ in before:
            setattr(owner, name, WINDOW)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


Model = Callable[[PackedBatch], TokenStatistics]


def beside(model: Model, rollouts: Sequence[Rollout], truth: Tensor, longest: int, row: int | None) -> Tensor:
    """Relative difference, float64 [], of log-probabilities that are packed beside the end of a long sequence.

    That is the first rollout, at the last positions of ``longest`` tokens; it is not compared.

    Args:
        truth: log-probabilities of the rollouts one at a time, in their order, float64.
        row: see :func:`~oblr.batch.packing.pack`.
    """
    packed = pack(rollouts, row)
    moved = packed.segments.host.view(packed.position_ids.shape) == 0
    packed.position_ids[moved] += max(longest - rollouts[0].n_tokens, 0)
    return _gap(model, packed, truth, skip=1)


def in_one_row(model: Model, rollouts: Sequence[Rollout], truth: Tensor, tokens: int) -> Tensor:
    """The same of copies of them all in a row of ``tokens`` or a few more."""
    copies = list(rollouts) * (tokens // sum(r.n_tokens for r in rollouts) + 1)
    return _gap(model, lay_out(copies, [list(range(len(copies)))]), truth, skip=0)


@torch.no_grad()
def _gap(model: Model, packed: PackedBatch, truth: Tensor, skip: int) -> Tensor:
    packed = packed.to(truth.device)
    logs, compared = model(packed).logprobs.double()[packed.order], packed.owners >= skip
    expected = truth.repeat(len(logs) // len(truth))
    return (logs - expected)[compared].norm() / expected[compared].norm()
