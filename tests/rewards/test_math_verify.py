"""``reward=math_verify``: the library's own verdicts, in processes of their own."""

from oblr.problem import Completion, Problem
from oblr.rewards.evaluating import evaluates
from oblr.rewards.math_verify import MathVerifyReward
from oblr.rewards.pool import RewardPool

PROBLEM = Problem("half", "", r"\frac{1}{2}")


def test_its_verdicts_are_the_librarys():
    texts = [
        r"So it is $\boxed{0.5}$.",
        r"The answer is $\frac{2}{4}$",
        "The answer is 0.6",
        "no idea",
        r"$\boxed{0.5}$",
    ]
    ends = [True, True, True, True, False]
    pool = RewardPool(MathVerifyReward(), workers=1)
    try:
        verdicts = pool.score([PROBLEM] * 5, texts, [Completion([1], [0.0], end) for end in ends])
    finally:
        pool.close()
    assert [verdict.reward for verdict in verdicts] == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_what_it_evaluates_is_scored_apart():
    assert "SymPy" in evaluates(MathVerifyReward(), PROBLEM)
