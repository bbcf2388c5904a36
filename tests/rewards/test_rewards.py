import pytest

from oblr.data.procedural import ReasoningGymProblems
from oblr.errors import SettingError
from oblr.problem import Completion, Problem
from oblr.rewards.answer import AnswerFormat, ExactReward
from oblr.rewards.base import try_out
from oblr.rewards.reasoning_gym import ReasoningGymReward

ENDED, CUT = Completion([1], [0.0], True), Completion([1], [0.0], False)
PROBLEM = Problem("p", "?", "1,234")


@pytest.mark.parametrize(
    ("text", "completion", "expected"),
    [
        ("work\nAnswer: 1234", ENDED, 1.0),
        ("Answer: 1,234.", ENDED, 1.0),
        ("Answer: 7 no, Answer: 1234", ENDED, 1.0),
        ("Answer: 1234 or 7", ENDED, 0.0),
        ("Answer: 1234\nAnswer: 7", ENDED, 0.0),
        ("1234", ENDED, 0.0),
        ("Answer: 1234", CUT, 0.0),
    ],
)
def test_exact(text, completion, expected):
    assert ExactReward(AnswerFormat())(PROBLEM, text, completion) == expected


def test_reasoning_gyms_scorer_pays_no_partial_marks():
    problem = ReasoningGymProblems("chain_sum", size=5, seed=1)[0]
    reward = ReasoningGymReward(AnswerFormat())
    assert reward(problem, f"Answer: {problem.answer}", ENDED) == 1.0
    assert reward(problem, f"Answer: {problem.answer}.0", ENDED) == 1.0  # its own tolerance
    assert reward(problem, f"Answer: 1 2 3 {problem.answer} 4", ENDED) == 0.0
    assert reward(problem, "Answer: ", ENDED) == 0.0


def raises(problem, text, completion):
    raise KeyError("boom")


@pytest.mark.parametrize("reward", [raises, lambda *_: float("nan"), lambda *_: float("inf"), lambda *_: None])
def test_a_broken_reward_is_named(reward):
    with pytest.raises(SettingError, match=r"^reward: .*problem p"):
        try_out(reward, PROBLEM, ENDED)
