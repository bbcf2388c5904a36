"""reasoning-gym's own scorers."""

import warnings
from contextlib import redirect_stdout, suppress
from functools import cache

from reasoning_gym import create_dataset, get_score_answer_fn

from oblr.problem import Completion, Problem
from oblr.rewards.answer import AnswerReward
from oblr.rewards.evaluating import inert, runs_text

scorer = cache(get_score_answer_fn)


@cache
def _runner(task: str) -> str:
    return runs_text(scorer(task))


@cache
def _tried(task: str) -> None:
    example = create_dataset(task, size=1, seed=0)[0]
    with redirect_stdout(None), warnings.catch_warnings(action="ignore"), suppress(Exception):
        scorer(task)(example["answer"], example)


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

    def prepare(self, problem: Problem) -> bool:
        """Judge an example of the task, once: what the scorer imports and caches need not be made for each response."""
        before = _tried.cache_info().misses
        _tried(problem.metadata["metadata"]["source_dataset"])
        return _tried.cache_info().misses > before

    def evaluates(self, problem: Problem) -> str:
        """What in the task's scorer runs the answer as code; "" for most tasks."""
        return _runner(problem.metadata["metadata"]["source_dataset"])

    def inert(self, text: str, completion: Completion) -> bool:
        """Whether the answer does nothing when it is run, or there is none."""
        answer = self.format.extract(text, completion)
        return answer is None or inert(answer)
