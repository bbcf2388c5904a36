"""Responses that got no reward because scoring them took too long or failed, and problems that pay none."""

import torch
from lightning import Trainer

from callbacks.observer import Observer, rollout_data
from oblr.batch.types import StepStatistics
from oblr.policy.step import PolicyModule
from oblr.run.ranks import of_run


class ScoringFailures(Observer):
    """Logs ``reward/timeouts`` and ``reward/errors``: on all ranks since the last step, evaluations included.

    And ``reward/unpaid``, problems of this step that no response can be right on.
    """

    def __init__(self) -> None:
        self.before = torch.zeros(2)

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        data = rollout_data(trainer)
        pool = data.reward_pool
        counts = torch.tensor([float(pool.timeouts), float(pool.errors)])
        since = torch.cat([counts - self.before, torch.tensor([float(stats.batch.unpaid)])])
        timeouts, errors, unpaid = of_run().reduce(since).tolist()
        self.before = counts
        policy.log_dict({"reward/timeouts": timeouts, "reward/errors": errors, "reward/unpaid": unpaid})

    on_refused = on_step
