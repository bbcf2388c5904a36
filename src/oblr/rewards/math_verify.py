"""math-verify, which many published results are scored with, as it is."""

import logging
from collections.abc import Hashable

from oblr.problem import Completion, Problem


class MathVerifyReward:
    """1 where `math-verify <https://github.com/huggingface/Math-Verify>`_ finds the problem's answer, else 0.

    It looks for the answer in the whole response and simplifies both by SymPy, which evaluates text as Python on the
    way: each response is scored in a process of its own.

    Args:
        require_end: whether a response that the token limit cut has no answer.
    """

    evaluates = "SymPy, by math-verify"

    def __init__(self, require_end: bool = True):
        self.require_end = require_end

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        from math_verify import parse, verify

        if self.require_end and not completion.finished:
            return 0.0
        # Without its alarms: the process that scores has a time limit of its own.
        gold = parse(rf"\boxed{{{problem.answer}}}", parsing_timeout=None)
        return float(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))

    def key(self, problem: Problem, text: str, completion: Completion) -> Hashable:
        """The problem's answer, the response, and whether that ended: all that the verdict depends on."""
        return problem.answer, text, completion.finished

    def warm_up(self) -> None:
        """Importing it takes a second; of its alarms that are off it would warn."""
        import math_verify  # noqa: F401

        logging.getLogger("math_verify").setLevel(logging.ERROR)
