"""A learning rate that does not move."""

from dataclasses import dataclass

from oblr.batch.types import Moments
from oblr.kinds import Rate
from oblr.schedules.base import Schedule


@dataclass
class ConstantSchedule(Schedule):
    """``η_t = η₀``.

    Args:
        lr: ``η₀``, the learning rate.
    """

    lr: Rate

    @property
    def words(self) -> str:
        return f"constant η₀ = {self.lr:g}"

    def __call__(self, moments: Moments, step: int) -> float:
        return self.lr
