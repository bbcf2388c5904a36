"""A learning rate that does not move."""

from dataclasses import dataclass
from typing import Any, ClassVar

from oblr.types import Moments


@dataclass
class ConstantSchedule:
    """``η_t = η₀``.

    Args:
        lr: ``η₀``.
    """

    lr: float
    needs_noise: ClassVar[bool] = False

    def __call__(self, moments: Moments, step: int) -> float:
        return self.lr

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
