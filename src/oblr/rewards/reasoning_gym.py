"""reasoning-gym's own scorers."""

from functools import cache

from reasoning_gym import get_score_answer_fn

from oblr.problem import Problem
from oblr.rewards.answer import AnswerReward

scorer = cache(get_score_answer_fn)


class ReasoningGymReward(AnswerReward):
    """1 where the task's own scorer gives the extracted answer full marks, else 0.

    Partial marks are not paid out: several tasks give them to any text that contains the answer somewhere, and a
    policy learns to list numbers.
    """

    def correct(self, problem: Problem, answer: str) -> bool:
        return scorer(problem.metadata["metadata"]["source_dataset"])(answer, problem.metadata) >= 1.0
