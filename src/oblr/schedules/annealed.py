"""A schedule that ends at zero."""

from oblr.batch.types import Moments
from oblr.kinds import Count
from oblr.schedules.base import Schedule, WrappingSchedule
from oblr.schedules.decay import LinearSchedule


class AnnealedSchedule(WrappingSchedule):
    """``η_t = (1 − t/T) · η'_t``, where ``η'_t`` is another schedule's.

    What noise has added to a policy is paid once, at the end, and later steps take it away again: rates may stay large
    for long, and should fall at last (``studies/horizon.py`` computes how far).

    Args:
        schedule: gives ``η'_t``, which is brought down to zero.
        steps: T, length of the run that the rate falls over, steps.
    """

    def __init__(self, schedule: Schedule, steps: Count):
        super().__init__(schedule)
        self.share = LinearSchedule(1.0, steps)

    @property
    def words(self) -> str:
        return f"{self.schedule.words} × {self.share.shape}"

    def __call__(self, moments: Moments, step: int) -> float:
        return self.schedule(moments, step) * self.share(moments, step)
