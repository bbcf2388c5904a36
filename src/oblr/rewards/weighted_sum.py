"""Several rewards in one number."""

from collections.abc import Mapping
from typing import TypedDict

from oblr.problem import Completion, Problem
from oblr.rewards.base import Reward


class Part(TypedDict):
    """One summand."""

    weight: float
    reward: Reward


class WeightedSum:
    """``R = Σ_k w_k R_k`` over named parts."""

    def __init__(self, parts: Mapping[str, Part]):
        self.parts = parts

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        return sum(part["weight"] * part["reward"](problem, text, completion) for part in self.parts.values())

    def warm_up(self) -> None:
        for part in self.parts.values():
            getattr(part["reward"], "warm_up", lambda: None)()
