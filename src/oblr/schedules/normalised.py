"""A schedule whose steps are as long as it says, however long their gradients are."""

import math

from oblr.batch.types import Moments
from oblr.schedules.base import WrappingSchedule


class NormalisedSchedule(WrappingSchedule):
    """``η_t = η'_t/‖ĝ_t‖``: under SGD a step is ``η'_t`` long, another schedule's rate (normalised SGD).

    A long gradient is one whose noise is large, for most of ``‖ĝ‖²`` is noise; it gets no longer a step than others.
    Long gradients count for less than others then, as with clipping.

    Degenerate cases: a gradient of zero makes no step. One that is hardly any makes a step as long as others: there
    the decay of ``η'_t`` is what lessens its noise.

    Args:
        schedule: gives ``η'_t``, the length of a step in the norm of all parameters.
    """

    @property
    def needs_plain_steps(self) -> bool:  # type: ignore[override]
        return True

    @property
    def words(self) -> str:
        return f"steps as long as {self.schedule.words}: that over ‖ĝ‖"

    def __call__(self, moments: Moments, step: int) -> float:
        norm = math.sqrt(moments.mean_square)
        length = self.schedule(moments, step)
        return length / norm if norm else 0.0
