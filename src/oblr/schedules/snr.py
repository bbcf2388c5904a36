"""The learning rate that the gradient's signal-to-noise ratio governs (arXiv 2511.23310, Theorem 4)."""

from typing import Any, Literal

from oblr.batch.types import Moments
from oblr.kinds import Decay, Natural, Rate, Share, checked
from oblr.schedules.base import Schedule

Estimator = Literal["plug_in", "debiased", "ema"]
#: What each takes the SNR from, in words.
SOURCES: dict[Estimator, str] = {
    "plug_in": "SNR of each batch as it is",
    "debiased": "SNR of each batch without bias",
    "ema": "SNR of a moving average over batches",
}


class SNREstimates:
    """SNR of a sequence of steps by every estimator.

    ``plug_in``: ``M1/tr H`` of the step. Its factor is near 1/2 or above even without any signal.
    ``debiased``: ``max(M1 − tr H/N, 0)/tr H`` of the step. Zero at many steps where the signal is weak.
    ``ema``: debiased, from exponential moving averages of M1 and M2 that are divided only afterwards; the averages
    are corrected for starting at zero.

    Args:
        decay: what the moving averages keep at a step.
    """

    def __init__(self, decay: Decay):
        self.decay = decay
        self.mean_square = self.square_mean = self.weight = 0.0

    def update(self, moments: Moments) -> dict[Estimator, float]:
        """Take a step's moments into account; returns the SNR by each estimator."""
        keep = self.decay
        self.mean_square = keep * self.mean_square + (1 - keep) * moments.mean_square
        self.square_mean = keep * self.square_mean + (1 - keep) * moments.square_mean
        self.weight = keep * self.weight + (1 - keep)
        smoothed = Moments(moments.n_groups, self.mean_square / self.weight, self.square_mean / self.weight)
        return {"plug_in": moments.snr_plug_in, "debiased": moments.snr_debiased, "ema": smoothed.snr_debiased}

    def state_dict(self) -> dict[str, Any]:
        return {"mean_square": self.mean_square, "square_mean": self.square_mean, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean_square, self.square_mean, self.weight = state["mean_square"], state["square_mean"], state["weight"]


@checked("schedule")
class SNRSchedule(Schedule):
    """``η_t = η₀ · N·SNR_t / (1 + N·SNR_t)``, the same as ``η₀ / (1 + B_noise/N)`` (arXiv 1812.06162).

    Theorem 4 takes the rate as given; this one is of the gradient that it multiplies, which biases the step. From the
    second update of a batch on the moments are of rollouts that the policy has learnt from. ``tr H`` takes prompts for
    independent: where few are drawn without replacement, it has too much noise between prompts.

    Args:
        eta0: ``η₀``, the learning rate that a noiseless gradient would be given.
        estimator: of the signal-to-noise ratio, see :class:`SNREstimates`.
        decay: what the moving averages of ``ema`` keep at a step.
        floor: least share of ``η₀``, so that a signal lost in the noise does not end learning.
        warm_up: steps over which the rate first rises linearly to what the SNR gives.
    """

    needs_noise = True

    def __init__(
        self,
        eta0: Rate,
        estimator: Estimator = "plug_in",
        decay: Decay = 0.9,
        floor: Share = 0.0,
        warm_up: Natural = 0,
    ):
        self.eta0, self.estimator, self.floor, self.warm_up = eta0, estimator, floor, warm_up
        self.estimates = SNREstimates(decay)

    @property
    def words(self) -> str:
        least = f", at least {self.floor:g} of η₀" if self.floor else ""
        start = f", after a warm-up of {self.warm_up} steps" if self.warm_up else ""
        return f"η₀ = {self.eta0:g} × Theorem 4's factor N·SNR/(1 + N·SNR), {SOURCES[self.estimator]}{least}{start}"

    def __call__(self, moments: Moments, step: int) -> float:
        factor = shrinkage(moments.n_groups * self.estimates.update(moments)[self.estimator])
        return self.eta0 * max(factor, self.floor) * min(1.0, (step + 1) / (self.warm_up + 1))

    def state_dict(self) -> dict[str, Any]:
        return self.estimates.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.estimates.load_state_dict(state)


def shrinkage(n_snr: float) -> float:
    """``N·SNR/(1 + N·SNR)``, 1 where the SNR is infinite."""
    return 1.0 if n_snr == float("inf") else n_snr / (1 + n_snr)
