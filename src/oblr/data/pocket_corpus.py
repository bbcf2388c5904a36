"""The corpora that the pocket base models are pretrained on: chain sums answered by a *mixture of behaviours*.

Reinforcement learning sharpens what a base model already does some of the time. So a corpus shows the same problem
answered well and badly, and a model fitted to it does both: it can be right, and often does not bother to be.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Annotated

from oblr.errors import SettingError
from oblr.kinds import Natural, Part, Seed, Share
from oblr.problem import Problem

MARKER = "Answer:"
PAUSE = "Hmm.\n"


def _steps(problem: Problem, rng: random.Random, slips: Callable[[int], Set[int]]) -> tuple[list[str], int]:
    """Left-to-right working of ``a + b - c …``: its lines, and the result.

    Of ``k`` steps those in ``slips(k)`` are off by a little; the first is number 1.
    """
    terms = re.findall(r"([+-]?)\s*(\d+)", problem.metadata["metadata"]["expression"])
    total, lines = int(terms[0][1]), []
    wrong = slips(len(terms) - 1)
    for k, (operator, digits) in enumerate(terms[1:], start=1):
        result = total + int(digits) * (1 if operator == "+" else -1)
        if k in wrong:
            result += rng.choice((-3, -2, -1, 1, 2, 3))
        lines.append(f"{total} {operator} {digits} = {result}")
        total = result
    return lines, total


def _right(problem: Problem, rng: random.Random) -> tuple[list[str], int]:
    return _steps(problem, rng, lambda _: set())


def careful(problem: Problem, rng: random.Random) -> str:
    """Worked steps, the marker, the right answer, and a clean end."""
    lines, result = _right(problem, rng)
    return "\n".join([*lines, f"{MARKER} {result}"])


def shortcut(problem: Problem, rng: random.Random) -> str:
    """No working: a guess near the answer, wrong."""
    return f"{MARKER} {int(problem.answer) + rng.choice((-1, 1)) * rng.randint(1, 9)}"


def slip(problem: Problem, rng: random.Random) -> str:
    """Worked steps with one of them wrong."""
    lines, result = _steps(problem, rng, lambda count: {rng.randrange(1, count + 1)})
    return "\n".join([*lines, f"{MARKER} {result}"])


def sloppy(problem: Problem, rng: random.Random) -> str:
    """Worked steps, each of which is wrong one time in three."""
    lines, result = _steps(problem, rng, lambda count: {k for k in range(1, count + 1) if rng.random() < 1 / 3})
    return "\n".join([*lines, f"{MARKER} {result}"])


def unmarked(problem: Problem, rng: random.Random) -> str:
    """Right working, but the answer marker is missing."""
    lines, result = _right(problem, rng)
    return "\n".join([*lines, f"So it is {result}."])


def endless(problem: Problem, rng: random.Random) -> str:
    """Right working and answer, checked again and again: the text is cut before it ends."""
    lines, result = _right(problem, rng)
    check = "\n".join([*lines, f"{MARKER} {result}", "Let me check that."])
    return "\n".join([check] * 8)


Behaviour = Callable[[Problem, random.Random], str]
BEHAVIOURS: dict[str, Behaviour] = {
    behaviour.__name__: behaviour for behaviour in (careful, shortcut, slip, sloppy, unmarked, endless)
}


def pocket_corpus(
    problems: Annotated[Sequence[Problem], Part("oblr.data")],
    held_out: Annotated[Sequence[Problem], Part("oblr.data")],
    seed: Seed,
    mixture: Mapping[str, Share],
    longest_pause: Natural = 0,
) -> Iterator[tuple[str, str, bool]]:
    """Answer each problem by a behaviour drawn from ``mixture``; yields (prompt, response, whether the text ends).

    Problems that are also in ``held_out`` are left out: the base model must not have seen the evaluation.

    Args:
        problems: sums.
        held_out: sums that are left out.
        seed: of the behaviours.
        mixture: share of each of :data:`BEHAVIOURS` in the corpus.
        longest_pause: with any, a response begins with 1 to so many lines that say nothing, as many of them in each
            factor of two, whatever the behaviour: how long it is tells nothing of its worth.

    Raises:
        SettingError: a behaviour that there is not.
    """
    if unknown := mixture.keys() - BEHAVIOURS.keys():
        raise SettingError(
            "pretraining.corpus.mixture", f"there is no behaviour {min(unknown)!r}", f"use some of {[*BEHAVIOURS]}"
        )
    return _answered(problems, {problem.prompt for problem in held_out}, random.Random(seed), mixture, longest_pause)


def _answered(
    problems: Sequence[Problem], unseen: Set[str], rng: random.Random, mixture: Mapping[str, float], longest_pause: int
) -> Iterator[tuple[str, str, bool]]:
    for problem in problems:
        if problem.prompt in unseen:
            continue
        (name,) = rng.choices([*mixture], [*mixture.values()])
        pause = PAUSE * int(longest_pause ** rng.random()) if longest_pause else ""
        yield problem.prompt, pause + BEHAVIOURS[name](problem, rng), name != "endless"
