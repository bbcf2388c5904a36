"""The learning rate that the gradient's signal-to-noise ratio governs (arXiv 2511.23310, Theorem 4)."""

from typing import Any, Literal, get_args

from oblr.errors import SettingError
from oblr.schedules.base import Schedule
from oblr.types import Moments

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
        decay: of the moving averages, in [0, 1).
    """

    def __init__(self, decay: float):
        if not 0 <= decay < 1:
            raise SettingError("schedule.decay", f"{decay} is not in [0, 1)", "0.9 averages over about ten steps")
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


class SNRSchedule(Schedule):
    """``η_t = η₀ · (N·SNR_t / (1 + N·SNR_t))^p``; for p = 1 the same as ``η₀ / (1 + B_noise/N)`` (arXiv 1812.06162).

    Args:
        eta0: ``η₀``; the rate that a noiseless gradient would be given.
        estimator: of the SNR, see :class:`SNREstimates`.
        decay: of the ``ema`` estimator.
        floor: least share of ``η₀``, so that a signal lost in the noise does not end learning.
        warm_up: steps over which the rate rises linearly to what the SNR gives.
        power: p, in (0, 1]: 1 is Theorem 4's, the best of one step; 1/2 gives up later.

    Raises:
        SettingError: unknown estimator, a decay outside [0, 1), a floor outside [0, 1], a negative warm-up, a power
            outside (0, 1].
    """

    needs_noise = True

    def __init__(
        self,
        eta0: float,
        estimator: Estimator = "plug_in",
        decay: float = 0.9,
        floor: float = 0.0,
        warm_up: int = 0,
        power: float = 1.0,
    ):
        if estimator not in get_args(Estimator):
            raise SettingError("schedule.estimator", f"{estimator!r} is unknown", f"use one of {get_args(Estimator)}")
        if not 0 <= floor <= 1:
            raise SettingError("schedule.floor", f"{floor} is not a share of eta0", "use 0 to 1")
        if warm_up < 0:
            raise SettingError("schedule.warm_up", f"{warm_up} is not a number of steps", "use 0 or more")
        if not 0 < power <= 1:
            raise SettingError("schedule.power", f"{power} is not in (0, 1]", "1 is Theorem 4's")
        self.eta0, self.estimator, self.floor, self.warm_up, self.power = eta0, estimator, floor, warm_up, power
        self.estimates = SNREstimates(decay)

    @property
    def words(self) -> str:
        power = "" if self.power == 1 else f"^{self.power:g}"
        factor = f"Theorem 4's factor (N·SNR/(1 + N·SNR)){power}" if power else "Theorem 4's factor N·SNR/(1 + N·SNR)"
        least = f", at least {self.floor:g} of η₀" if self.floor else ""
        start = f", after a warm-up of {self.warm_up} steps" if self.warm_up else ""
        return f"η₀ = {self.eta0:g} × {factor}, {SOURCES[self.estimator]}{least}{start}"

    def __call__(self, moments: Moments, step: int) -> float:
        factor = shrinkage(moments.n_groups * self.estimates.update(moments)[self.estimator])
        return self.eta0 * max(factor**self.power, self.floor) * min(1.0, (step + 1) / (self.warm_up + 1))

    def state_dict(self) -> dict[str, Any]:
        return self.estimates.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.estimates.load_state_dict(state)


def shrinkage(n_snr: float) -> float:
    """``N·SNR/(1 + N·SNR)``, 1 where the SNR is infinite."""
    return 1.0 if n_snr == float("inf") else n_snr / (1 + n_snr)
