"""What a schedule is."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from oblr.batch.types import Moments


class Schedule(ABC):
    """Gives the learning rate of a step from the moments of its gradient and the number of steps before it.

    Attributes:
        needs_noise: whether N = 1, where tr H is not defined, is out of the question.
        needs_plain_steps: whether its rate means nothing where steps are not ``−η ĝ``, as those of plain SGD are.
    """

    needs_noise: ClassVar[bool] = False
    needs_plain_steps: ClassVar[bool] = False

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


class WrappingSchedule(Schedule):
    """Changes the rate of another schedule, whose needs and memory are its own.

    Args:
        schedule: the other one.
    """

    def __init__(self, schedule: Schedule):
        self.schedule = schedule

    @property
    def needs_noise(self) -> bool:  # type: ignore[override]
        return self.schedule.needs_noise

    @property
    def needs_plain_steps(self) -> bool:  # type: ignore[override]
        return self.schedule.needs_plain_steps

    def state_dict(self) -> dict[str, Any]:
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state)
