"""What a reward is, and the guard around every call of one."""

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from oblr.problem import Completion, Problem


class Reward(Protocol):
    """Scores one response: any finite number, higher is better; or named numbers, whose sum it is.

    It may also have ``answer(text, completion)``, the final answer that majority votes count; ``key(problem, text,
    completion)``, all that its verdict depends on; ``warm_up()``, called before the first response;
    ``evaluates(problem)``, or a flag of that name, whether it runs what a response says as code, where its source does
    not show it; ``inert(text, completion)``, whether this response does nothing when it is run; and
    ``prepare(problem)``, called where each response has a process of its own, before that is made: whether it has done
    what need not be done for each.
    """

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float | Mapping[str, float]: ...


class Score(NamedTuple):
    """What a reward gave; ``parts`` are the numbers that add up to it, where it named them."""

    value: float
    parts: dict[str, float]


class RewardError(Exception):
    """A reward raised, or returned something that is not a finite number."""


def score(reward: Reward, problem: Problem, text: str, completion: Completion) -> Score:
    """The reward of one response.

    Raises:
        RewardError: the reward raised, or returned something that is not a finite number.
    """
    try:
        given = reward(problem, text, completion)
        parts = {name: float(value) for name, value in given.items()} if isinstance(given, Mapping) else {}
        value = math.fsum(parts.values()) if isinstance(given, Mapping) else float(given)
    except BaseException as error:  # sys.exit, KeyboardInterrupt and the like end this response, not the process
        raise RewardError(f"{name(reward)} raised {error!r:.200}") from error
    if not math.isfinite(value):
        raise RewardError(f"{name(reward)} gave {value}, which is not a finite number")
    return Score(value, parts)


def name(reward: Reward) -> str:
    return getattr(reward, "__name__", type(reward).__name__)
