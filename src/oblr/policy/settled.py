"""What a run leaves open is settled before its first update: passes and token budget, where they are ``auto``."""

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from oblr.gradnorm.passes import (
    BUDGETS,
    CONTEXT,
    EITHER,
    GIB,
    Layout,
    Needs,
    Passes,
    choose,
    free_memory,
    room_of,
    states_of,
    total_memory,
)
from oblr.run.ranks import of_run
from oblr.run.strategies import DDP

if TYPE_CHECKING:
    from oblr.policy.step import PolicyModule

log = logging.getLogger(__name__)


def options(policy: "PolicyModule") -> tuple[Sequence[Passes], Sequence[int]]:
    """The passes and token budgets that memory is to choose from, best first. Without norms there is one plain pass."""
    passes, budget = policy.gradnorm.passes, cast(Any, policy.token_budget)
    either: Sequence[Passes] = EITHER if policy.gradnorm.has_norms else ("two",)
    return either if passes == "auto" else (passes,), BUDGETS if budget == "auto" else (budget,)


def settle(policy: "PolicyModule", needs: Needs, room: float) -> None:
    """Put values in place of ``auto``, as a plan and a run do.

    Args:
        room: bytes for micro-batches.
    """
    passes, policy.token_budget = choose(needs, *options(policy), room)
    if policy.gradnorm.has_norms:
        policy.gradnorm.passes = passes


def layout_of(
    policy: "PolicyModule", computed: torch.dtype, shards: int, bucketed: bool, beside: float, largest: int
) -> Layout:
    """How ``policy`` lies on a rank's device; see :class:`~oblr.gradnorm.passes.Layout`."""
    states, reference, offload = (
        states_of(policy.make_optimizer),
        policy.kl is not None,
        policy.cpu_offload and shards > 0,
    )
    return Layout(computed, shards, offload, bucketed, states, reference, CONTEXT, beside, largest)


def settle_here(policy: "PolicyModule", group_size: int) -> None:
    """Settle it on this run's devices, once, alike on all ranks: collectives run inside each pass. Collective.

    What the devices have altogether decides. What is free at the moment does where it is less: others have it.
    """
    passes, budgets = options(policy)
    if len(passes) * len(budgets) == 1:
        return
    longest = getattr(getattr(policy.trainer, "datamodule", None), "max_model_len", None) or 0
    ranks, sharing = of_run(), policy.trainer.num_devices
    mesh, bucketed = policy.device_mesh, isinstance(policy.trainer.strategy, DDP)
    shards = mesh.shape[-1] if mesh else 0
    needs = Needs(
        policy.scorer.lm, layout_of(policy, policy.computed_in, shards, bucketed, policy.beside, group_size * longest)
    )
    coming = max(0.0, needs.updating - present(policy.parameters(), policy.optimizers()))
    room = room_of(needs, total_memory(policy.device, sharing))
    free = free_memory(policy.device, sharing)
    least, alone = ranks.least(min(room, free - coming)), ranks.least(room)
    planned = choose(needs, passes, budgets, alone)
    settle(policy, needs, least)
    found = choose(needs, passes, budgets, least)
    log.info(
        "passes: %s, in micro-batches of up to %d tokens, which take up to %.2f GiB of %.2f that they have room for",
        *(*found, needs.of_tokens(*found) / GIB, least / GIB),
    )
    if found != planned:
        log.warning(
            "passes would be %s, in micro-batches of up to %d tokens, if this run were alone on its devices, of which "
            "%.2f GiB are free",
            *(*planned, free / GIB),
        )


def present(parameters: Iterable[Tensor], optimizer: Any) -> int:
    """Bytes of the gradients and the optimizer state that are there already."""
    state = getattr(optimizer, "optimizer", optimizer).state.values()
    found = [p.grad for p in parameters] + [value for each in state for value in each.values()]
    local = (x.to_local() if isinstance(x, DTensor) else x for x in found if isinstance(x, Tensor))
    return sum(x.nbytes for x in local)
