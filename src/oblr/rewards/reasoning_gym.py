"""reasoning-gym's own scorers."""

import warnings
from contextlib import redirect_stdout
from functools import cache

from reasoning_gym import get_score_answer_fn

from oblr.problem import Problem
from oblr.rewards.answer import AnswerReward
from oblr.rewards.evaluating import runs_text

scorer = cache(get_score_answer_fn)


@cache
def _runner(task: str) -> str:
    return runs_text(scorer(task))


class ReasoningGymReward(AnswerReward):
    """1 where the task's own scorer gives the extracted answer full marks, else 0.

    Partial marks are not paid out: several tasks give them to any text that contains the answer somewhere, and a
    policy learns to list numbers.
    """

    def correct(self, problem: Problem, answer: str) -> bool:
        judge = scorer(problem.metadata["metadata"]["source_dataset"])
        with redirect_stdout(None), warnings.catch_warnings(action="ignore"):  # some print what they cannot read
            try:
                return judge(answer, problem.metadata) >= 1.0
            except Exception:  # others raise on it; one that raises on right answers is refused before the run
                return False

    def evaluates(self, problem: Problem) -> str:
        """What in the task's scorer runs the answer as code; "" for most tasks."""
        return _runner(problem.metadata["metadata"]["source_dataset"])
