"""What a step has found, of all ranks, and the numbers of it that are logged."""

from typing import Any

import torch
from torch import Tensor

from oblr.batch.types import COLUMNS, RolloutBatch, StepStatistics
from oblr.run.ranks import of_run


class Found(dict[str, Tensor]):
    """The columns for this rank's groups alone, float64 [N, G] each.

    Args:
        batch: the rank's rollouts.
    """

    def __init__(self, batch: RolloutBatch):
        shape = batch.rewards.shape
        super().__init__((name, torch.full(shape, one.missing, dtype=torch.float64)) for name, one in COLUMNS.items())
        self.size = batch.group_size

    def put(self, groups: Tensor | None = None, **columns: Tensor) -> None:
        """Numbers that were found. Waits once for the device that they are on.

        Args:
            groups: int64 [n]; of which groups; None: of all.
            columns: [n, G], flat or not, or [n] of groups.
        """
        values = torch.stack([self._of_responses(name, column).double() for name, column in columns.items()]).cpu()
        for name, column in zip(columns, values, strict=True):
            self[name][slice(None) if groups is None else groups] = column

    def _of_responses(self, name: str, column: Tensor) -> Tensor:
        return column[:, None].expand(-1, self.size) if COLUMNS[name].of_group else column.reshape(-1, self.size)

    def of_all_ranks(self) -> dict[str, Any]:
        """The columns as :class:`StepStatistics` has them. Collective."""
        gathered = of_run().gather(torch.stack(list(self.values()), -1)).unbind(-1)
        return {
            name: (values[:, 0] if COLUMNS[name].of_group else values).to(COLUMNS[name].dtype)
            for name, values in zip(self, gathered, strict=True)
        }


def tags(stats: StepStatistics) -> dict[str, float]:
    """Plain numbers, which are the same on all ranks: Lightning would gather tensors, wherever they lie."""
    batch = stats.batch
    return {
        "train/reward": stats.scores.mean().item(),
        "train/live_groups": stats.live.float().mean().item(),
        "train/entropy": stats.entropy,
        "train/lr": stats.lr,
        **{f"rollout/logprob_gap_{name}": value for name, value in stats.logprob_gap._asdict().items()},
        "rollout/truncated": 1 - stats.finished.float().mean().item(),
        "rollout/age": float(batch.age) if batch.token_age is None else batch.token_age,
        "rollout/ess": stats.effective_sample_size,
        "rollout/growth": stats.growth,
        "rollout/length": stats.lengths.float().mean().item(),
        **({} if batch.refilled is None else {"rollout/refilled": float(batch.refilled)}),
    }
