"""Partial credit for the working of a chain sum."""

import re

from oblr.problem import Completion, Problem
from oblr.rewards.answer import Format


class WorkingReward:
    """The share of a chain sum that is worked out right, in [0, 1].

    ``a + b - c`` has two steps, ``a + b = …`` and ``… - c = …``, which are expected in the response's first lines, and
    an answer. Each of the three counts the same. Nothing after the first line that is not the step expected counts as
    a step.

    Args:
        format: what of a response is its answer.
    """

    def __init__(self, format: Format):
        self.format = format

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        first, *terms = re.findall(r"[+-]?\s*\d+", problem.metadata["metadata"]["expression"])
        total, right, lines = int(first), 0, [line.strip() for line in text.split("\n")]
        for term, line in zip(terms, lines, strict=False):
            result = total + int(term.replace(" ", ""))
            if line != f"{total} {term[0]} {term[1:].strip()} = {result}":
                break
            total, right = result, right + 1
        right += self.format.extract(text, completion) == problem.answer
        return right / (len(terms) + 1)
