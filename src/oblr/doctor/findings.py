"""The type of a finding, and the small functions that tests of a run's steps share."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from oblr.statistics.log import Response, StepRecord

#: Something is wrong, and numbers that it touches mean little; or all is right, and something would pay.
Kind = Literal["illness", "tuning"]
#: By what it is said: nothing else can be the cause; chance alone would show it less than once in a thousand runs; or
#: once in some twenty.
Sure = Literal["certain", "almost certain", "likely"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or would pay.

    Attributes:
        name: of the test that has found it.
        kind: whether it is an illness.
        said: what it is, a sentence.
        evidence: the numbers that say so.
        sure: how sure that is.
        fix: the one thing to do, as an override of this program.
        trl: the same as a line of TRL's configuration, or in the words of its trainer; empty where it can do nothing,
            so that its users are not told.
        step: which one it is of, from 1; None where it is of many.
        response: the place in the step's ``responses`` of the one at fault, from 0; None where none is alone.
    """

    name: str
    kind: Kind
    said: str
    evidence: str
    sure: Sure
    fix: str
    trl: str
    step: int | None = None
    response: int | None = None


#: Looks for one thing in the steps of a run, in their order; None where it is not there, or nothing is known of it.
Test = Callable[[Sequence[StepRecord]], Finding | None]


def quoted(text: str | None, most: int = 60) -> str:
    """A prompt or response as a line, cut."""
    if text is None:
        return "(text not kept)"
    line = " ".join(text.split())
    return f"“{line[:most]}{'…' * (len(line) > most)}”"


def called(step: StepRecord, place: int) -> str:
    """A response of a step, in words."""
    one = step.responses[place]
    within = [i for i, other in enumerate(step.responses) if other.group == one.group].index(place)
    return f"response {within} of prompt {one.group} {quoted(one.prompt)} of step {step.step}"


def by_group(step: StepRecord) -> list[list[Response]]:
    """The responses of a step, prompt by prompt."""
    groups: dict[int, list[Response]] = {}
    for one in step.responses:
        groups.setdefault(one.group, []).append(one)
    return list(groups.values())


def rewards(steps: Iterable[StepRecord]) -> list[float]:
    """All that are known."""
    return [one.reward for step in steps for one in step.responses if one.reward is not None]


def finite(value: float | None) -> bool:
    """Whether a value is known, and a finite number."""
    return value is not None and math.isfinite(value)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
