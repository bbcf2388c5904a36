"""A model in float32, whatever its run computes in, and only as much of it at a time as there is room for.

Formulas are right or wrong in any precision, but only float32 tells them from rounding. Float32 weights are used as
they are, and so are shards. Others are widened where they lie, some of the model's blocks at a time, beside what is not
in a block; the blocks between are passed over.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from transformers import PreTrainedModel

from oblr.errors import SettingError
from oblr.policy.attention import SDPA, VARLEN
from oblr.policy.autograds import Plain, device
from oblr.policy.model import PolicyModel

#: Largest share of a model that is float32 at once: with its gradient that is no more than the model's own gradient.
SHARE = 0.25


@dataclass(frozen=True)
class Part:
    """Some blocks of a model, and how they answer.

    Attributes:
        blocks: by their places; None: all of them.
        tuples: whether blocks give tuples.
    """

    blocks: range | None = None
    tuples: bool = False


@contextmanager
def in_float32(model: PolicyModel) -> Iterator[None]:
    """Without autocast, without rounded copies of shards, without TF32, and by an attention that takes float32."""
    lm, attention = model.lm, model.lm.config._attn_implementation
    precision = torch.get_float32_matmul_precision()
    if attention == VARLEN:
        lm.set_attn_implementation(SDPA)
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device(model).type, enabled=False), _gathered_whole(model):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        if attention == VARLEN:
            lm.set_attn_implementation(attention)


def parts(plain: Plain) -> list[Part]:
    """What the model is looked at in, one after the other."""
    lm, blocks = plain.model.lm, _blocks(plain.model.lm)
    if plain.model.sharded or blocks is None or all(p.dtype == torch.float32 for p in lm.parameters()):
        return [Part()]
    besides, largest = _size(lm) - _size(blocks), max(map(_size, blocks))
    count = max(1, int((SHARE * _size(lm) - besides) / max(largest, 1)))
    tuples = _gives_tuples(plain, blocks)
    if tuples is None or count >= len(blocks):
        return [Part()]
    found = [Part(range(i, min(i + count, len(blocks))), tuples) for i in range(0, len(blocks), count)]
    return found if all(_runs(plain, part) for part in found) else [Part()]


@contextmanager
def widened(model: PolicyModel, part: Part) -> Iterator[None]:
    """Only these blocks are there, and all weights and buffers that are there are float32; shards stay as they are."""
    blocks = _blocks(model.lm)
    before = [] if part.blocks is None or blocks is None else list(blocks)
    narrow: list[tuple[Tensor, Tensor]] = []
    try:
        for i, block in enumerate(before):
            if i not in cast(range, part.blocks):
                cast(nn.ModuleList, blocks)[i] = Skipped(block, part.tuples)
        for x in () if model.sharded else (*model.parameters(), *model.buffers()):
            if x.is_floating_point() and torch.finfo(x.dtype).bits < 32:
                narrow.append((x, x.data))
                x.data = x.data.float()
        yield
    finally:
        for x, data in narrow:
            x.grad = None
            x.data = data
        for i, block in enumerate(before):
            cast(nn.ModuleList, blocks)[i] = block


class Skipped(nn.Module):
    """Passes on what a block is given; whoever asks it for anything else is answered by the block."""

    def __init__(self, block: nn.Module, tuples: bool):
        super().__init__()
        vars(self).update(block=block, tuples=tuples)  # no parameter of the block is this one's

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["block"], name)

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden_states,) if vars(self)["tuples"] else hidden_states


def _blocks(lm: PreTrainedModel) -> nn.ModuleList | None:
    """What the model's depth is made of."""
    lists = [module for module in lm.base_model.children() if isinstance(module, nn.ModuleList)]
    return max(lists, key=_size, default=None)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@torch.no_grad()
def _gives_tuples(plain: Plain, blocks: nn.ModuleList) -> bool | None:
    """None where a block is not given the very tensor that the one before it has made, and none can be passed over."""
    given: list[Any] = []
    made: list[Any] = []
    handles = [
        handle
        for block in blocks
        for handle in (
            block.register_forward_pre_hook(
                lambda _, args, named: given.append(args[0] if args else named.get("hidden_states")), with_kwargs=True
            ),
            block.register_forward_hook(lambda *call: made.append(call[2])),
        )
    ]
    try:
        plain.own(0)
    finally:
        for handle in handles:
            handle.remove()
    tuples = bool(made) and isinstance(made[0], tuple)
    passed = [x[0] if isinstance(x, tuple) and x else x for x in made]
    chain = len(given) == len(blocks) and all(x is y for x, y in zip(given[1:], passed, strict=False))
    return tuples if chain else None


@torch.no_grad()
def _runs(plain: Plain, part: Part) -> bool:
    """Whether the blocks of a part do without the others: some use what others have left behind."""
    with widened(plain.model, part):
        try:
            plain.own(0)
        except SettingError:
            return False
    return True


@contextmanager
def _gathered_whole(model: PolicyModel) -> Iterator[None]:
    """FSDP2 gathers shards in float32, and leaves float32 gradients, whatever its policy of mixed precision is."""
    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    policies = [state._mp_policy for state in states]
    trained = [p for p in model.parameters() if p.requires_grad and p.dtype != torch.float32]
    exact = MixedPrecisionPolicy(torch.float32, torch.float32)
    try:
        for p in trained if model.sharded else ():
            p.grad_dtype = torch.float32  # type: ignore[attr-defined]
        for state in states:
            if state is states[0]:
                state._lazy_init()  # the root's: what the first pass would do would undo this
            _gather_by(state, exact, torch.float32)
        yield
    finally:
        model.zero_grad()
        for state, policy in zip(states, policies, strict=True):
            _gather_by(state, policy, None)
        for p in trained if model.sharded else ():
            p.grad_dtype = p.dtype  # type: ignore[attr-defined]


def _gather_by(state: Any, policy: MixedPrecisionPolicy, gradients: torch.dtype | None) -> None:
    """Until the next call.

    Args:
        gradients: precision that shards of gradients are left in; None: the shards' own.
    """
    state._mp_policy = policy
    for group in state._fsdp_param_groups:
        group.reshard()
        group.mp_policy = policy
        group._init_mp_dtypes()
        if gradients is not None and group._orig_dtype is not None:
            group._orig_dtype = gradients
        for p in group.fsdp_params:  # which keeps room of the other precision
            p.all_gather_outputs = []
            if hasattr(p, "_unsharded_param"):
                del p._unsharded_param
