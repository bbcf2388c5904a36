"""Which part of an update an operation belongs to, and an update that needs no trainer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from oblr.batch.types import LogprobGap, Rollout, RolloutBatch
from oblr.gradnorm.tape import Tape
from oblr.plan.dry_run import Bytes, DryRun
from oblr.plan.work import Work
from oblr.policy.step import PolicyModule

#: In the order of tables. ``norms``: squared norms of weight gradients, and those gradients where they come with them.
PHASES = ("forward", "backward", "recomputation", "norms", "weight gradients", "optimizer", "rest")


class Alone:
    """What an update asks of its trainer, where all ranks do the same: this one speaks for them."""

    current_epoch = global_rank = 0

    def __init__(self, ranks: int, precision: str):
        self.world_size, self.precision = ranks, precision

    @property
    def strategy(self) -> "Alone":
        return self

    def reduce(self, tensor: Tensor, reduce_op: str = "sum") -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor, **_: Any) -> Tensor:
        return tensor.expand(self.world_size, *tensor.shape)


@contextmanager
def phases(run: DryRun, lm: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Tell ``run`` which phase it is in; elsewhere it is in ``rest``, and in ``backward`` as it sees by itself."""
    stack: list[Any] = []

    def enter(phase: Callable[[], str]) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            stack.append(run.device.doing(phase()))
            stack[-1].__enter__()

        return hook

    def leave(*_: Any) -> None:
        stack.pop().__exit__(None, None, None)

    def watched(take: Callable[..., Any], phase: Callable[[Tape], str]) -> Callable[..., Any]:
        def call(tape: Tape, *args: Any, **kwargs: Any) -> Any:
            with run.device.doing(phase(tape)):
                return take(tape, *args, **kwargs)

        return call

    blocks = cast(nn.ModuleList, cast(Any, lm).base_model.layers)
    again = enter(lambda: "recomputation" if run.device.phase in ("backward", "recomputation") else run.device.phase)
    with ExitStack() as hooks:
        for module, before in [(model, enter(lambda: "forward")), *((block, again) for block in blocks)]:
            hooks.callback(module.register_forward_pre_hook(before).remove)
            # Checkpointing ends what it computes again by an error, as soon as it has all that it needs.
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        hooks.callback(optimizer.register_step_pre_hook(enter(lambda: "optimizer")).remove)
        hooks.callback(optimizer.register_step_post_hook(leave).remove)
        norms = {
            "take": lambda tape: "norms" if tape.mode in ("norms", "record") else "weight gradients",
            "accumulate": lambda _: "weight gradients",
        }
        for name, phase in norms.items():
            original = getattr(Tape, name)
            setattr(Tape, name, watched(original, phase))
            hooks.callback(setattr, Tape, name, original)
        yield


def micro_batches(
    run: DryRun, policy: PolicyModule, rollouts: list[Rollout], group_size: int, times: int = 2
) -> tuple[Work, Bytes, Work]:
    """Update ``policy`` from these rollouts again and again, each time in one micro-batch.

    Returns:
        what the last micro-batch computes and receives, its packing included, and what the update computes besides:
        autocast rounds weights in the first one, for all.
    """
    passed = [(run.device.work.copy(), run.moved.copy())]
    own = policy.micro_batches

    def watched(*args: Any) -> Iterator[Any]:
        for micro_batch in own(*args):
            yield micro_batch
            passed.append((run.device.work.copy(), run.moved.copy()))

    before, batch = run.device.work.copy(), RolloutBatch(rollouts * times, group_size, 0)
    policy.__dict__["micro_batches"] = watched
    policy.refusals.judge = lambda stats, step: False  # type: ignore[method-assign]  # its numbers mean nothing
    try:
        policy.update(batch, batch.rewards, LogprobGap(0.0, 0.0, 0.0), fresh=True)
    finally:
        del policy.__dict__["micro_batches"]
    if len(passed) != times + 1:
        raise AssertionError(f"{len(passed) - 1} micro-batches instead of {times}")
    (earlier, moved_earlier), (later, moved_later) = passed[-2:]
    work = later - earlier
    return work, moved_later - moved_earlier, run.device.work - before - work * times
