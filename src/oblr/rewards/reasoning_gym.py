"""reasoning-gym's own scorers."""

from functools import cache

from reasoning_gym import get_score_answer_fn

from oblr.rewards.answer import AnswerFormat
from oblr.types import Completion, Problem

scorer = cache(get_score_answer_fn)


class ReasoningGymReward:
    """1 where the task's own scorer gives the extracted answer full marks, else 0.

    Partial marks are not paid out: several tasks give them to any text that contains the answer somewhere, and a
    policy learns to list numbers.
    """

    def __init__(self, format: AnswerFormat):
        self.format = format

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        answer = self.format.extract(text, completion)
        score = scorer(problem.metadata["metadata"]["source_dataset"])
        return float(answer is not None and score(answer, problem.metadata) >= 1.0)

    def answer(self, text: str, completion: Completion) -> str | None:
        """What majority votes count; None where the response gives no answer."""
        return self.format.extract(text, completion)
