"""Tokens per second and seconds per phase."""

import time

from lightning import LightningModule, Trainer

from callbacks.observer import Observer
from oblr.batch.types import StepStatistics
from oblr.policy.step import PolicyModule


class Throughput(Observer):
    """Logs ``time/<phase>`` and ``time/step`` in seconds, and response tokens per second of the whole step.

    ``time/ahead_<phase>`` is no part of the step: its batch was sampled and scored in it, while others were trained on.

    Attributes:
        rate: those tokens per second of the last step; 0 before the first.
    """

    rate = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start = time.perf_counter()

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        seconds = time.perf_counter() - self.start
        phases = policy.clock.reset()
        self.rate = stats.lengths.sum().item() / seconds
        policy.log_dict(
            {
                **{f"time/{phase.replace(' ', '_')}": spent for phase, spent in phases.items()},
                **{f"time/ahead_{phase}": spent for phase, spent in stats.batch.beside.items()},
                "time/step": seconds,
                "throughput/tokens_per_second": self.rate,
            }
        )

    on_refused = on_step
