"""What every baseline would have made of the very same rollouts."""

from dataclasses import replace
from typing import Any

from lightning import Trainer

from callbacks.observer import Observer
from oblr.baselines.base import Baseline, all_groups
from oblr.batch.types import StepStatistics
from oblr.policy.step import PolicyModule


class SecondMoments(Observer):
    """Logs ``baseline/<name>``: the mean of ``(R_i − b_i)² ρ_i² n_i`` that a baseline would have had, over the first's.

    It is measured on the groups that took part in the step. For unbiased baselines the mean gradients agree, so a
    smaller second moment is a smaller variance; a baseline that contains its own sample shrinks the advantages and
    does not belong here. Steps without norms are left out, see ``GradStats``, which comes before this callback.

    Args:
        baselines: by name; the first is what the others are compared with, and not logged itself.
    """

    def __init__(self, baselines: dict[str, Baseline]):
        self.baselines = baselines

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        weights = stats.square_norms * stats.ratios.square()
        known = weights.isfinite().all(1)
        if not known.any():
            return
        groups = replace(all_groups(stats), reward_weights=weights).of(known)
        moments = {}
        for name, baseline in self.baselines.items():
            moments[name] = (baseline(groups).double().square() * groups.reward_weights).mean()
            baseline.learn(groups)
        first, *_ = moments.values()
        if first > 0:
            policy.log_dict({f"baseline/{name}": moment / first for name, moment in [*moments.items()][1:]})

    def state_dict(self) -> dict[str, Any]:
        return {name: baseline.state_dict() for name, baseline in self.baselines.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.baselines.keys() & state_dict.keys():  # one that was not watched before begins anew
            self.baselines[name].load_state_dict(state_dict[name])
