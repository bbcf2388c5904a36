"""The gradient's signal-to-noise ratio by every estimator, whatever the schedule uses."""

from typing import Any

from lightning import Trainer

from callbacks.observer import Observer
from oblr.batch.types import StepStatistics
from oblr.kinds import Decay
from oblr.policy.step import PolicyModule
from oblr.schedules.snr import SNREstimates, shrinkage

#: Stands for infinity, which TensorBoard does not draw.
LARGE = 1e6


class SNRMonitor(Observer):
    """Logs moments, SNR, noise scale, and the factor of ``η₀`` that each estimator gives.

    Args:
        decay: what the moving averages behind the ``ema`` estimate keep at a step.
    """

    def __init__(self, decay: Decay = 0.9):
        self.estimates = SNREstimates(decay)

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        moments = stats.moments
        snr = self.estimates.update(moments)
        policy.log_dict(
            {
                "snr/n_groups": moments.n_groups,
                "snr/M1": moments.mean_square,
                "snr/M2": moments.square_mean,
                "snr/noise": moments.noise,
                "snr/noise_scale": min(moments.noise_scale, LARGE),
                **{f"snr/{name}": min(value, LARGE) for name, value in snr.items()},
                **{f"snr/factor_{name}": shrinkage(moments.n_groups * value) for name, value in snr.items()},
            }
        )

    def state_dict(self) -> dict[str, Any]:
        return self.estimates.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.estimates.load_state_dict(state_dict)
