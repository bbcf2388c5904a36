"""A reward that takes longer, in a module that the processes which score import quickly."""

import time
from collections.abc import Mapping

from oblr.problem import Completion, Problem
from oblr.rewards.base import Reward


class Slow:
    """``reward`` after ``seconds``, in which no processor works. Each response is scored, also where two are alike."""

    def __init__(self, reward: Reward, seconds: float):
        self.reward, self.seconds = reward, seconds

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float | Mapping[str, float]:
        time.sleep(self.seconds)
        return self.reward(problem, text, completion)
