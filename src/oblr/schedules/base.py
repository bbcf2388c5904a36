"""What a schedule is."""

from typing import Any, Protocol

from oblr.types import Moments


class Schedule(Protocol):
    """Gives the learning rate of a step from the moments of its gradient and the number of steps before it."""

    needs_noise: bool  # whether N = 1, where tr H is not defined, is out of the question

    def __call__(self, moments: Moments, step: int) -> float: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
