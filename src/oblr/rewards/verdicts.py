"""What was found of a response, and how it is told: in lines that are data, for a response may have written them."""

import json
import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NoReturn

from oblr.rewards.base import Score

#: ``killed``: the process was, from outside, and nothing is known of the response.
Outcome = Literal["scored", "timeout", "error", "killed"]
NONE = Score(0.0, {})
#: Bytes of a line.
LONGEST = 2**20
#: Characters of what went wrong.
WORDS = 1000


class Result(NamedTuple):
    """``problem`` is what went wrong, "" where nothing did; a response can be scored all the same."""

    score: Score
    outcome: Outcome
    problem: str = ""


@dataclass(frozen=True)
class Verdict:
    """The reward of a response, and its parts where it names them; 0 where it took too long or failed.

    ``problem`` is what went wrong, "" where nothing did.
    """

    reward: float
    outcome: Outcome
    parts: dict[str, float] = field(default_factory=dict)
    problem: str = field(default="", compare=False)


def line(result: Result) -> bytes:
    """A result in one line of JSON, shorter than :data:`LONGEST`."""
    problem = result.problem[:WORDS].encode(errors="replace").decode()
    said = json.dumps([result.score.value, result.score.parts, result.outcome, problem]).encode() + b"\n"
    if len(said) > LONGEST:
        return line(Result(NONE, "error", "the parts of the reward have too long names, or there are too many"))
    return said


def result(said: str | bytes) -> Result:
    """What :func:`line` has written; anything else is an error of the response, and nothing in it is run."""
    try:
        value, parts, outcome, problem = json.loads(said, parse_constant=_refused)
        numbers = [value, *parts.values()]
        plain = isinstance(parts, dict) and all(type(number) in (float, int) for number in numbers)
        if not (plain and all(map(math.isfinite, numbers)) and isinstance(problem, str) and len(problem) <= WORDS):
            raise ValueError
        if outcome not in ("scored", "error") or (outcome == "error" and (value or parts)):
            raise ValueError
        return Result(Score(float(value), {str(name): float(part) for name, part in parts.items()}), outcome, problem)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return Result(NONE, "error", "the process that scored it did not say a verdict")


def _refused(constant: str) -> NoReturn:
    raise ValueError(constant)
