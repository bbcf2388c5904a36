"""The corpus that the pocket base model is pretrained on: chain sums answered by a *mixture of behaviours*.

Reinforcement learning sharpens what a base model already does some of the time. So the corpus shows the same problem
answered well and badly, and a model fitted to it does both: it can be right, and often does not bother to be.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

from oblr.types import Problem

MARKER = "Answer:"


def _steps(expression: str, rng: random.Random, slip: bool = False) -> tuple[list[str], int]:
    """Left-to-right working of ``a + b - c …``; with ``slip`` one step is off by a little. Returns (lines, result)."""
    terms = re.findall(r"([+-]?)\s*(\d+)", expression)
    total, lines = int(terms[0][1]), []
    wrong_at = rng.randrange(1, len(terms)) if slip else 0
    for k, (operator, digits) in enumerate(terms[1:], start=1):
        result = total + int(digits) * (1 if operator == "+" else -1)
        if k == wrong_at:
            result += rng.choice((-3, -2, -1, 1, 2, 3))
        lines.append(f"{total} {operator} {digits} = {result}")
        total = result
    return lines, total


def careful(problem: Problem, rng: random.Random) -> str:
    """Worked steps, the marker, the right answer, and a clean end."""
    lines, result = _steps(problem.metadata["metadata"]["expression"], rng)
    return "\n".join([*lines, f"{MARKER} {result}"])


def shortcut(problem: Problem, rng: random.Random) -> str:
    """No working: a guess near the answer, wrong."""
    return f"{MARKER} {int(problem.answer) + rng.choice((-1, 1)) * rng.randint(1, 9)}"


def slip(problem: Problem, rng: random.Random) -> str:
    """Worked steps with one of them wrong."""
    lines, result = _steps(problem.metadata["metadata"]["expression"], rng, slip=True)
    return "\n".join([*lines, f"{MARKER} {result}"])


def unmarked(problem: Problem, rng: random.Random) -> str:
    """Right working, but the answer marker is missing."""
    lines, result = _steps(problem.metadata["metadata"]["expression"], rng)
    return "\n".join([*lines, f"So it is {result}."])


def endless(problem: Problem, rng: random.Random) -> str:
    """Right working and answer, checked again and again: the text is cut before it ends."""
    lines, result = _steps(problem.metadata["metadata"]["expression"], rng)
    check = "\n".join([*lines, f"{MARKER} {result}", "Let me check that."])
    return "\n".join([check] * 8)


Behaviour = Callable[[Problem, random.Random], str]
#: Behaviour, its share of the corpus, and whether end-of-text follows it.
MIXTURE: tuple[tuple[Behaviour, float, bool], ...] = (
    (careful, 0.32, True),
    (shortcut, 0.28, True),
    (slip, 0.12, True),
    (unmarked, 0.18, True),
    (endless, 0.10, False),
)


def pocket_corpus(
    problems: Sequence[Problem], held_out: Sequence[Problem], seed: int
) -> Iterator[tuple[str, str, bool]]:
    """Answer each problem by a behaviour drawn from :data:`MIXTURE`; yields (prompt, response, ends).

    Problems that are also in ``held_out`` are left out: the base model must not have seen the evaluation.
    """
    rng = random.Random(seed)
    unseen = {problem.prompt for problem in held_out}
    behaviours, shares = [(b, ends) for b, _, ends in MIXTURE], [share for _, share, _ in MIXTURE]
    for problem in problems:
        if problem.prompt in unseen:
            continue
        ((behaviour, ends),) = rng.choices(behaviours, shares)
        yield problem.prompt, behaviour(problem, rng), ends
