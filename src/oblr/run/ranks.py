"""The processes of a run, and all that they do together.

NCCL moves nothing that lies in host memory, and a vLLM engine in this process leaves a process group behind even where
the run has no other process. So nobody asks :mod:`torch.distributed` who takes part, or hands it a tensor: the run's
strategy says once who its ranks are (:func:`join`), and all else goes through :func:`of_run`. Tensors travel by the
device that the strategy computes on, wherever they lie; objects by the CPU's side of the group. Besides, libraries move
the policy's own parameters where they are sharded: FSDP2, DTensor and :mod:`torch.distributed.checkpoint`.

**The collectives of a step.** One that a single rank skips hangs all others, so how many there are depends on what all
ranks know alike. P: the policy's parameters. M: parts of micro-batches, of which each rank has the same number by
:func:`oblr.batch.packing.partition`. In this order, again for each update of a batch; "sharded" under FSDP only:

| when | what | how often |
|---|---|---|
| self-check, each round | sharded: its passes, squared norms of its gradients; the largest differences | 9; 7 |
| … with more than rounding | likewise, of the model's own rounding; what each layer gives, as objects | 7; 2; 1 |
| sync of the engine | sharded: whole weights; death of an engine | P; 1 |
| … of several servers | which are back, and how each begins; which have got them, as objects | 1; 1 each; 1 |
| rollouts, each call | engines of several ranks: prompts, as objects; death of an engine | 1; 1 |
| … with ``rollout.refill``, each time | how many groups agree, as objects; then as another call | 1 |
| … with ``rollout.ahead`` | death of the engine under the batch that is due; the few of the newest weights | 1; 1 |
| … and ``rollout.in_flight`` | death of the engine; ages of the tokens of the batch that was due | 1; 1 |
| evaluation, every k-th step | as rollouts; then scores or answers, as objects | each benchmark 1 |
| ``check_engine`` | sharded: one forward pass; the gap | 1 |
| ``GradStats``, every k-th step | as micro-batches; the norms | ; 1 |
| rewards less a penalty | sharded: the reference's forward passes | M |
| ``update``: groups | all rewards; passes, where memory decides, once a run; numbers of micro-batches | 1; 2; 2 or 3 |
| micro-batches | sharded: weights a block at a time, forward and backward; gradients likewise | each pass of M |
| … with copies | sharded: own shards of the gradients, between copies, as often as those are summed within one | |
| … in one pass | sharded: the head's weight; for each use of a parameter its gradient | M (tied: 2 M); M each |
| ``moments`` | sharded: ‖ĝ‖² and Σ‖g_q‖²; else each gradient, then Σ‖g_q‖² | 1; P + 1 |
| ``Doctor``, before the optimizer | sharded: the way of the last update | 1 |
| statistics of the step | all that is known of responses; rewards of greedy ones, if there are | 1; 0 or 1 |
| … that is refused | the problems' names, as objects; no more updates, nothing to ``learn`` | 1 |
| ``learn`` | what the baseline adds up, if any rank has weights | 0 to 2 |
| callbacks | failures of scoring; the signal to stop | 1; 1 |
| checkpoint | objects | |

What is made of a head under FSDP must not depend on a rank's own number of targets: see
:meth:`oblr.policy.model.PolicyModel.forward`.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """Processes that act together; without a group this one alone.

    Args:
        group: has a side for the CPU, and one for ``device``.
        device: where tensors travel.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | None = None):
        self.group, self.device = group, device or torch.device("cpu")
        #: this process's place among them, and how many they are
        self.rank, self.count = (0, 1) if group is None else (group.rank(), group.size())

    def objects(self, own: T) -> list[T]:
        """That of each rank, in order."""
        if self.group is None:
            return [own]
        shares: list[Any] = [None] * self.count
        dist.all_gather_object(shares, own, group=self.group)
        return shares

    def reduce(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """``tensor`` summed (``max``: maximised, elementwise) over the ranks, where ``tensor`` lies."""
        if self.group is None:
            return tensor
        moved = tensor.detach().to(self.device, copy=True)
        dist.all_reduce(moved, getattr(dist.ReduceOp, operation.upper()), group=self.group)
        return moved.to(tensor.device)

    def gather(self, tensor: Tensor) -> Tensor:
        """Rows of all ranks [ranks · n, …], rank after rank, where ``tensor`` [n, …] lies; n is the same on each."""
        if self.group is None:
            return tensor
        own = tensor.detach().to(self.device).contiguous()
        rows = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(rows, own, group=self.group)
        return torch.cat(rows).to(tensor.device)

    def greatest(self, number: float) -> float:
        """The largest ``number`` of all ranks."""
        return self.reduce(torch.tensor(number, dtype=torch.float64), "max").item()

    def least(self, number: float) -> float:
        """The smallest."""
        return -self.greatest(-number)

    def split(self, size: int) -> "Ranks":
        """Those of every ``size`` consecutive ones that this process belongs to. Collective."""
        if size == self.count:
            return self
        if size == 1:
            return Ranks(device=self.device)
        group, _ = dist.new_subgroups(size, self.group)
        return Ranks(group, self.device)


_run = Ranks()


def of_run() -> Ranks:
    """All ranks of this run."""
    return _run


def join(device: torch.device) -> None:
    """The ranks of this run are those of the default group, which its strategy has just made."""
    global _run
    _run = Ranks(dist.group.WORLD, device)
    weakref.finalize(dist, _part)  # at exit after those of engines, which still use their groups; atexit's come before


def stay_alone() -> None:
    """This run has no other process, whatever groups libraries make."""
    global _run
    _run = Ranks()


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()  # NCCL asks for it


def on_every_rank(action: Callable[[], T]) -> list[T]:
    """What ``action`` returns on each rank; an OSError of one of them is raised on all."""
    try:
        own: T | OSError = action()
    except OSError as error:
        own = error
    results: list[Any] = of_run().objects(own)
    for result in results:
        if isinstance(result, OSError):
            raise result
    return results


def on_first_rank(action: Callable[[], object]) -> None:
    """Do it on rank 0 while the others wait; an OSError is raised on all."""
    on_every_rank(lambda: None if of_run().rank else action())
