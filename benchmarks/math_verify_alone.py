"""math-verify without our rules, in a module that the processes that score can load."""

from math_verify import parse, verify

from oblr.problem import Completion, Problem


class MathVerify:
    """1 where math-verify, which looks for the answer in the whole response, finds the problem's."""

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        gold = parse(rf"\boxed{{{problem.answer}}}", parsing_timeout=None)
        return float(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))

    def key(self, problem: Problem, text: str, completion: Completion) -> tuple[str, str]:
        return problem.answer, text
