"""What every baseline would have made of the very same rollouts."""

from dataclasses import replace
from typing import Any

from lightning import Trainer

from callbacks.observer import Observer
from oblr.baselines.base import Baseline, all_groups, second_moment
from oblr.batch.types import StepStatistics
from oblr.policy.step import PolicyModule


class SecondMoments(Observer):
    """Logs ``baseline/<name>``: the mean of ``(R_i − b_i)² ρ_i² n_i`` that a baseline would have had, over the first's.

    It is a mean over all groups of the step. A baseline that gives groups of equal rewards an advantage has one where
    their norms are known: at steps where the run's own baseline, or ``GradStats``, which comes before this callback,
    has measured them. For unbiased baselines the mean gradients agree, so a smaller second moment is a smaller
    variance; a baseline that contains its own sample shrinks the advantages and does not belong here.

    Args:
        baselines: by name; the first is what the others are compared with, and not logged itself.
    """

    def __init__(self, baselines: dict[str, Baseline]):
        self.baselines = baselines

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        weights = stats.square_norms * stats.ratios.square()
        known = weights.isfinite().all(1)
        step = replace(all_groups(stats), reward_weights=weights, step_weights=weights)
        if not known.any():
            return
        moments = {}
        for name, baseline in self.baselines.items():
            if (moment := second_moment(baseline, step)) is not None:
                moments[name] = moment
                baseline.learn(step.of(known))
        first, *names = self.baselines
        if moments.get(first, 0) > 0:
            policy.log_dict({f"baseline/{name}": moments[name] / moments[first] for name in names if name in moments})

    def state_dict(self) -> dict[str, Any]:
        return {name: baseline.state_dict() for name, baseline in self.baselines.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.baselines.keys() & state_dict.keys():  # one that was not watched before begins anew
            self.baselines[name].load_state_dict(state_dict[name])
