"""What a schedule is."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from oblr.batch.types import Moments


class Schedule(ABC):
    """Gives the learning rate of a step from the moments of its gradient and the number of steps before it.

    Attributes:
        needs_noise: whether N = 1, where tr H is not defined, is out of the question.
    """

    needs_noise: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """What governs the rate, in words with this run's numbers: shown wherever the rate is."""
        return type(self).__name__

    @abstractmethod
    def __call__(self, moments: Moments, step: int) -> float: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
