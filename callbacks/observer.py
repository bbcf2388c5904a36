"""Base class of a run's callbacks, which see the rollouts before each step and its statistics after it.

Observers change neither parameters, learning rate nor data: a run with all of them removed ends with the same bits.
"""

from collections.abc import Mapping
from typing import Any, cast

from lightning import Callback, LightningModule, Trainer

from oblr.batch.types import RolloutBatch, StepStatistics
from oblr.policy.step import PolicyModule
from oblr.rollout.datamodule import RolloutDataModule


class Observer(Callback):
    """Override :meth:`on_rollouts`, :meth:`on_step` or :meth:`on_refused`."""

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        """The engine is in sync with ``policy``, and the step of ``batch``, which it has sampled, comes next."""

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        """The step has been taken."""

    def on_refused(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        """The step has been refused: figures in ``stats`` need not be numbers, and belong in no average."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        self.on_rollouts(trainer, cast(PolicyModule, pl_module), batch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: RolloutBatch, batch_idx: int
    ) -> None:
        stats: StepStatistics = outputs["statistics"]
        react = self.on_refused if stats.refused else self.on_step
        react(trainer, cast(PolicyModule, pl_module), stats)


def rollout_data(trainer: Trainer) -> RolloutDataModule:
    """The run's data module."""
    return cast(RolloutDataModule, trainer.datamodule)  # type: ignore[attr-defined]


def log_now(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Log numbers that are no part of a step, at the number of steps that have been taken: 0 before the first."""
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=trainer.current_epoch)
