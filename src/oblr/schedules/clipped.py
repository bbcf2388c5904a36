"""A schedule whose steps are not longer than gradients usually are (AutoClip, arXiv 2007.14469)."""

import math
from bisect import insort
from typing import Any

from oblr.batch.types import Moments
from oblr.kinds import Share, checked
from oblr.schedules.base import Schedule, WrappingSchedule


@checked("schedule")
class ClippedSchedule(WrappingSchedule):
    """``η_t = η'_t · min(1, c_t/‖ĝ_t‖)``, where ``η'_t`` is another schedule's.

    ``c_t`` is a quantile of ``‖ĝ‖`` over all steps so far, this one included, so that no first steps have to say what
    is usual. Under SGD this is clipping of the gradient; under others it shortens the step that they make of it.

    Degenerate cases: a first step is never shortened. Steps whose gradient is zero are not counted.

    Args:
        schedule: gives ``η'_t``.
        quantile: of the norms, interpolated; 1 clips nothing.
    """

    def __init__(self, schedule: Schedule, quantile: Share = 0.5):
        super().__init__(schedule)
        self.quantile = quantile
        self.norms = list[float]()  # ascending

    @property
    def words(self) -> str:
        return f"{self.schedule.words} × min(1, quantile {self.quantile:g} of ‖ĝ‖ so far/‖ĝ‖)"

    def __call__(self, moments: Moments, step: int) -> float:
        rate, norm = self.schedule(moments, step), math.sqrt(moments.mean_square)
        if norm == 0:
            return rate
        insort(self.norms, norm)
        return rate * min(1.0, _quantile(self.norms, self.quantile) / norm)

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self.schedule.state_dict(), "norms": list(self.norms)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state["schedule"])
        self.norms = list(state["norms"])


def _quantile(ascending: list[float], share: float) -> float:
    """Interpolated between the two nearest."""
    place = share * (len(ascending) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (place - below) * (ascending[above] - ascending[below])
