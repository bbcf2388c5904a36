"""Several rewards in one number."""

from collections.abc import Mapping
from typing import TypedDict

from oblr.kinds import Number
from oblr.problem import Completion, Problem
from oblr.rewards.base import Reward, score
from oblr.rewards.evaluating import evaluates


class Part(TypedDict):
    """One summand.

    Args:
        weight: factor.
        reward: what scores.
    """

    weight: Number
    reward: Reward


class WeightedSum:
    """``R = R_0 + Σ_k w_k R_k`` over named parts, which are kept beside it.

    Args:
        parts: summands by name.
        offset: ``R_0``, what every response gets.
    """

    def __init__(self, parts: Mapping[str, Part], offset: Number = 0.0):
        self.parts, self.offset = parts, offset

    def __call__(self, problem: Problem, text: str, completion: Completion) -> dict[str, float]:
        found = {
            name: part["weight"] * score(part["reward"], problem, text, completion).value
            for name, part in self.parts.items()
        }
        return found | {"offset": self.offset} if self.offset else found

    def evaluates(self, problem: Problem) -> str:
        """What in the first part that runs text does so."""
        return next(filter(None, (evaluates(part["reward"], problem) for part in self.parts.values())), "")

    def warm_up(self) -> None:
        for part in self.parts.values():
            getattr(part["reward"], "warm_up", lambda: None)()
