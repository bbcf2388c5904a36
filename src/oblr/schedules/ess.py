"""A schedule that is careful with old rollouts (arXiv 2602.17616)."""

import math

from oblr.batch.types import Moments
from oblr.schedules.base import WrappingSchedule


class ESSSchedule(WrappingSchedule):
    """``η_t = η'_t · √ESS_t``: another schedule's rate, and ``(Σρ)²/(S Σρ²)``, the share of fresh responses.

    A step of fresh rollouts in float32 is as long as without it. Where no response has a gradient nothing is known of
    the share, nor does it matter: it is 1.

    Args:
        schedule: gives ``η'_t``.
    """

    @property
    def words(self) -> str:
        return f"{self.schedule.words} × √ESS"

    def __call__(self, moments: Moments, step: int) -> float:
        return self.schedule(moments, step) * math.sqrt(moments.fresh)
