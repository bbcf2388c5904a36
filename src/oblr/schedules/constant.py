"""A learning rate that does not move."""

from dataclasses import dataclass

from oblr.schedules.base import Schedule
from oblr.types import Moments


@dataclass
class ConstantSchedule(Schedule):
    """``η_t = η₀``.

    Args:
        lr: ``η₀``.
    """

    lr: float

    def __call__(self, moments: Moments, step: int) -> float:
        return self.lr
