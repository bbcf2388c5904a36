import sys

import pytest

from oblr.data.procedural import ReasoningGymProblems
from oblr.errors import SettingError
from oblr.problem import Completion, Problem
from oblr.rewards.answer import AnswerFormat, BoxedFormat, ExactReward
from oblr.rewards.base import RewardError, score
from oblr.rewards.math import MathReward
from oblr.rewards.multiple_choice import MultipleChoiceReward
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.rewards.summary import SummaryReward
from oblr.rewards.weighted_sum import WeightedSum
from oblr.rewards.working import WorkingReward

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


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("1,234", "1234", True),
        ("-1234567.5", "-1,234,567.5", True),
        ("$1,234", "$1234", True),
        ("34", "3,4", False),
        ("3,4", "34", False),
        ("ab", "a,b", False),
        ("1234", "12,34", False),
        ("1234", "1,2,3,4", False),
        ("1234", "0,001,234", False),
        ("001234", "001,234", False),
        ("1234", "1234,", False),
        ("1234", ",1234", False),
        ("12345678", "12,345,678", True),
        ("12345678", "1234,5678", False),
        ("1.234567", "1.234,567", False),
        ("1234 567", "1,234 567", False),
        ("1,234 1,234", "1234 1234", False),
        ("f(1,234)", "f(1234)", False),
        ("3,4", "3,4.", True),
    ],
)
def test_commas_between_thousands_go_and_no_others(gold, answer, expected):
    problem = Problem("p", "?", gold)
    assert ExactReward(AnswerFormat())(problem, f"Answer: {answer}", ENDED) == float(expected)
    assert ExactReward(AnswerFormat())(Problem("p", "?", answer), f"Answer: {gold}", ENDED) == float(expected)


def test_reasoning_gyms_scorer_pays_no_partial_marks():
    problem = ReasoningGymProblems("chain_sum", size=5, seed=1)[0]
    reward = ReasoningGymReward(AnswerFormat())
    assert reward(problem, f"Answer: {problem.answer}", ENDED) == 1.0
    assert reward(problem, f"Answer: {problem.answer}.0", ENDED) == 1.0  # its own tolerance
    assert reward(problem, f"Answer: 1 2 3 {problem.answer} 4", ENDED) == 0.0
    assert reward(problem, "Answer: ", ENDED) == 0.0


@pytest.mark.parametrize(
    ("text", "completion", "expected"),
    [
        ("6 - 4 = 2\n2 + 9 = 11\n11 - 12 = -1\nAnswer: -1", ENDED, 4),
        ("6 - 4 = 2\n2 + 9 = 11\n11 - 12 = -1\nSo it is -1.", ENDED, 3),
        ("6 - 4 = 2\n2 + 9 = 11\n11 - 12 = -1\nAnswer: -1", CUT, 3),
        ("6 - 4 = 2\n2 + 9 = 12\n12 - 12 = 0\nAnswer: 0", ENDED, 1),
        ("6 - 4 = 2\n2 + 9 = 12\n11 - 12 = -1\nAnswer: -1", ENDED, 2),  # right again: not one that follows
        ("2 + 9 = 11\n6 - 4 = 2", ENDED, 0),
        ("6 - 4 = 2\n6 - 4 = 2\n6 - 4 = 2", ENDED, 1),
        ("6 - 4 = 2" * 3, ENDED, 0),
        ("Answer: -1", ENDED, 1),
        ("", ENDED, 0),
    ],
)
def test_every_right_step_of_a_working_is_paid(text, completion, expected):
    problem = Problem("p", "?", "-1", {"metadata": {"expression": "6 - 4 + 9 - 12"}})
    assert WorkingReward(AnswerFormat())(problem, text, completion) == expected / 4


#: problem's answer | response | reward
MATH = r"""
\frac{14}{3}         | The answer is 14/3.                | 1
\frac{14}{3}         | \boxed{4\tfrac{2}{3}}              | 1
\frac13              | \boxed{0.333333}                   | 1
\frac13              | \boxed{0.33}                       | 0
\frac13              | \boxed{0.3334}                     | 0
18                   | Answer: $18 dollars.               | 1
18                   | **Answer:** 18.00                  | 1
18                   | #### 18                            | 1
18                   | It is 18.                          | 0
18                   | So $\boxed 18$.                     | 1
18                   | So $\fbox{18}$.                     | 1
18                   | \boxed{18} and \boxed 19            | 0
18                   | \boxed{17} so the answer is 18     | 0
18                   | \boxed{18} or \boxed{19}           | 0
18                   | \boxed{18 or 19}                   | 0
18                   | \boxed{\boxed{18} or 19}           | 0
18                   | \boxed{\boxed{18}}                 | 1
18                   | \boxed{\boxed{18} or 19            | 0
18                   | \boxed{18, 19}                     | 0
18                   | \boxed{18} never closed \boxed{18  | 0
18                   | \boxed{18\text{ million}}          | 0
18                   | \boxed{18\text{ unless 19}}         | 0
3\sqrt{13}           | \boxed{3\sqrt{13}\text{ or not}}   | 0
3\sqrt{13}           | \boxed{3\sqrt{13}\text{ cm}}       | 1
18                   | \boxed{18n}                        | 0
18                   | \boxed{18_9}                       | 0
15                   | \boxed{7 8}                        | 0
241                  | \boxed{3^5 - 2}                    | 0
6                    | \boxed{\sum_{k=1}^3 k}             | 0
32,\!348             | \boxed{\$32348}                    | 1
.0000672             | \boxed{6.72 \times 10^{-5}}        | 1
.0000672             | \boxed{0.0000671}                  | 0
62.5%                | \boxed{62.5\%}                     | 1
62.5%                | \boxed{\frac58}                    | 1
137 \frac{1}{2}      | \boxed{137.5}                      | 1
137 \frac{1}{2}      | \boxed{\frac{1371}{2}}             | 0
90^\circ             | \boxed{90}                         | 1
864 \mbox{ inches}^2 | \boxed{864}                        | 1
52_8                 | \boxed{52_{8}}                     | 1
52_8                 | \boxed{52}                         | 1
52_8                 | \boxed{52_9}                       | 0
x=5                  | \boxed{5}                          | 1
3\sqrt{13}           | \boxed{\sqrt{117}}                 | 1
3\sqrt{13}           | \boxed{-3\sqrt{13}}                | 0
2n                   | \boxed{2}                          | 0
p - q                | \boxed{-q + p}                     | 1
(2,4)                | \boxed{\left(2, \frac{8}{2}\right)} | 1
(2,4)                | \boxed{(4,2)}                      | 0
(3,4]                | \boxed{(3, 4]}                     | 1
(3,4]                | \boxed{[3, 4]}                     | 0
1,-2                 | \boxed{x = -2 \text{ or } x = 1}   | 1
2,3,4                | \boxed{2,3}                        | 0
1 \pm \sqrt{19}      | \boxed{1-\sqrt{19}, 1+\sqrt{19}}   | 1
(1,8), (2,7)         | \boxed{(2,7),(1,8)}                | 1
\text{Evelyn}        | The answer is Evelyn.              | 1
x \in [-2,7]         | \boxed{[-2,7]}                     | 1
"""


@pytest.mark.parametrize("row", MATH.strip().splitlines())
def test_math(row):
    gold, text, expected = (cell.strip() for cell in row.split("|"))
    assert MathReward(BoxedFormat())(Problem("p", "?", gold), text, ENDED) == float(expected)
    assert MathReward(BoxedFormat())(Problem("p", "?", gold), text, CUT) == 0.0


def test_votes_are_counted_by_what_answers_say():
    reward = MathReward(BoxedFormat())
    same = ["\\boxed{1,5}", "\\boxed{5, 1.0}", "the answer is 5 and \\frac{2}{2}."]
    assert {reward.answer(text, ENDED) for text in same} == {"1, 5"}
    assert reward.answer("1", ENDED) is None
    assert ExactReward(AnswerFormat()).answer("Answer: 1,234.", ENDED) == "1234"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: B", 1.0),
        ("The answer is (B).", 1.0),
        ("\\boxed{\\text{B}}", 1.0),
        ("answer: option B) 42", 1.0),
        ("answer: B. 42.", 1.0),
        ("answer: (B) 7", 0.0),
        ("\\boxed{B. wrong}", 0.0),
        ("Answer: Because", 0.0),
        ("Answer: b", 1.0),
        ("Answer: A or B", 0.0),
        ("Answer: B, A", 0.0),
        ("Answer: A\nAnswer: C", 0.0),
        ("B", 0.0),
    ],
)
def test_multiple_choice(text, expected):
    for gold in ("B", "(B)", "\\text{(B)}"):
        assert (
            MultipleChoiceReward(BoxedFormat())(Problem("p", "6 · 7?\n(A) 7\n(B) $42$", gold), text, ENDED) == expected
        )


def test_summaries_by_hand():
    problem = Problem("p", "?", "unused", {"references": ["a dog", "the cat sat"]})
    text = "the cat sat on the mat"
    assert SummaryReward("rouge1")(problem, text, ENDED) == pytest.approx(2 * 0.5 * 1 / 1.5)
    assert SummaryReward("rouge2")(problem, text, ENDED) == pytest.approx(2 * 0.4 * 1 / 1.4)
    assert SummaryReward("rougeL", length_penalty=0.1)(problem, text, ENDED) == pytest.approx(2 / 3 - 0.1)
    assert SummaryReward("rougeL", length_penalty=0.1)(problem, "the cat", ENDED) == pytest.approx(0.8)  # no bonus
    assert SummaryReward()(problem, text, CUT) == 0.0
    assert SummaryReward()(PROBLEM, "1,234", ENDED) == 1.0
    for arguments in ({"kind": "rouge"}, {"length_penalty": -1.0}):
        with pytest.raises(SettingError, match=rf"^reward\.{next(iter(arguments))}"):
            SummaryReward(**arguments)


def test_sums():
    exact = ExactReward(AnswerFormat())
    parts = {"exact": {"weight": 2.0, "reward": exact}, "one": {"weight": -0.5, "reward": lambda *_: 1.0}}
    assert WeightedSum(parts)(PROBLEM, "Answer: 1234", ENDED) == {"exact": 2.0, "one": -0.5}
    assert score(WeightedSum(parts, offset=-1.0), PROBLEM, "Answer: 1234", ENDED).value == 0.5
    assert score(WeightedSum({"sum": {"weight": 3.0, "reward": WeightedSum(parts)}}), PROBLEM, "7", ENDED) == (
        -1.5,
        {"sum": -1.5},
    )


def raises(problem, text, completion):
    raise KeyError("boom")


def leaves(problem, text, completion):
    sys.exit(3)


@pytest.mark.parametrize("reward", [raises, leaves, lambda *_: float("nan"), lambda *_: float("inf"), lambda *_: None])
def test_a_broken_reward_is_named(reward):
    with pytest.raises(RewardError, match=rf"^{reward.__name__} "):
        score(reward, PROBLEM, "7", ENDED)
