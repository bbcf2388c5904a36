"""Learning rates that fall with the number of steps alone."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from oblr.batch.types import Moments
from oblr.errors import SettingError
from oblr.kinds import Count, Natural, Rate, checked
from oblr.schedules.base import Schedule


@checked("schedule")
@dataclass
class _Decay(Schedule):
    """``η_t`` is ``η₀`` times a factor that falls with ``t``.

    Args:
        lr: ``η₀``, the learning rate.
        steps: T, length of the run that the rate falls over, steps.
        warm_up: steps over which the rate first rises linearly to ``η₀``.

    Raises:
        SettingError: a warm-up as long as the run.
    """

    shape: ClassVar[str]  # in words

    lr: Rate
    steps: Count
    warm_up: Natural = 0

    def __post_init__(self) -> None:
        if self.warm_up >= self.steps:
            raise SettingError(
                "schedule.warm_up", f"{self.warm_up} is not less than the run's {self.steps} steps", "shorten it"
            )

    @property
    def words(self) -> str:
        start = f", after a warm-up of {self.warm_up} steps" if self.warm_up else ""
        return f"η₀ = {self.lr:g} × {self.shape}{start}"

    def __call__(self, moments: Moments, step: int) -> float:
        if step < self.warm_up:
            return self.lr * (step + 1) / self.warm_up
        return self.lr * self.factor(step - self.warm_up, self.steps - self.warm_up)

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Share of ``η₀`` at ``step`` of ``steps`` after the warm-up."""


class LinearSchedule(_Decay):
    """``η_t = η₀ (1 − t/T)``."""

    shape = "linear decay"

    def factor(self, step: int, steps: int) -> float:
        return max(1 - step / steps, 0.0)


class CosineSchedule(_Decay):
    """``η_t = η₀ (1 + cos(π t/T))/2`` (arXiv 1608.03983)."""

    shape = "cosine decay"

    def factor(self, step: int, steps: int) -> float:
        return (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2


class InverseSquareRootSchedule(_Decay):
    """``η_t = η₀/√(t+1)``: the rate of arXiv 2511.23310, Theorem 6, under which the average gradient falls as 1/√T."""

    shape = "1/√step"

    def factor(self, step: int, steps: int) -> float:
        return 1 / math.sqrt(step + 1)
