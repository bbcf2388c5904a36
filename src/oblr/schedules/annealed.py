"""A schedule that ends at zero."""

from typing import Any

from oblr.batch.types import Moments
from oblr.kinds import Count
from oblr.schedules.base import Schedule
from oblr.schedules.decay import LinearSchedule


class AnnealedSchedule(Schedule):
    """``η_t = (1 − t/T) · η'_t``, where ``η'_t`` is another schedule's.

    What noise has added to a policy is paid once, at the end, and later steps take it away again: rates may stay large
    for long, and should fall at last (``studies/horizon.py`` computes how far).

    Args:
        schedule: gives ``η'_t``, which is brought down to zero.
        steps: T, length of the run that the rate falls over, steps.
    """

    def __init__(self, schedule: Schedule, steps: Count):
        self.schedule, self.share = schedule, LinearSchedule(1.0, steps)

    @property
    def needs_noise(self) -> bool:  # type: ignore[override]
        return self.schedule.needs_noise

    @property
    def words(self) -> str:
        return f"{self.schedule.words} × {self.share.shape}"

    def __call__(self, moments: Moments, step: int) -> float:
        return self.schedule(moments, step) * self.share(moments, step)

    def state_dict(self) -> dict[str, Any]:
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state)
