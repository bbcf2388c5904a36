"""What a reward is, and the guard around every call of one."""

import math
from typing import Protocol

from oblr.errors import SettingError
from oblr.types import Completion, Problem


class Reward(Protocol):
    """Scores one response; any finite number, higher is better."""

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float: ...


def score(reward: Reward, problem: Problem, text: str, completion: Completion) -> float:
    """The reward of one response.

    Raises:
        SettingError: the reward raised, or returned something that is not a finite number.
    """
    try:
        value = float(reward(problem, text, completion))
    except Exception as error:
        raise SettingError(
            "reward", f"{type(reward).__name__} raised {error!r} on problem {problem.id}", "mend the reward"
        ) from error
    if not math.isfinite(value):
        raise SettingError(
            "reward", f"{type(reward).__name__} gave {value} on problem {problem.id}", "return a finite number"
        )
    return value
