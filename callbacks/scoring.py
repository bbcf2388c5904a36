"""Responses that got no reward because scoring them took too long or failed."""

import torch
from lightning import Trainer

from callbacks.observer import Observer, rollout_data
from oblr.policy.step import PolicyModule
from oblr.run.ranks import of_run
from oblr.types import StepReport


class ScoringFailures(Observer):
    """Logs ``reward/timeouts`` and ``reward/errors``: on all ranks since the last step, evaluations included."""

    def __init__(self) -> None:
        self.before = torch.zeros(2)

    def on_step(self, trainer: Trainer, policy: PolicyModule, report: StepReport) -> None:
        pool = rollout_data(trainer).reward_pool
        counts = torch.tensor([float(pool.timeouts), float(pool.errors)])
        timeouts, errors = of_run().reduce(counts - self.before).tolist()
        self.before = counts
        policy.log_dict({"reward/timeouts": timeouts, "reward/errors": errors})

    on_refused = on_step
