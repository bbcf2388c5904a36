"""Rewards and problems that are tried on each other: what cannot be paid, and what is paid for nothing."""

import random
from contextlib import contextmanager

import pytest
from odd_rewards import (
    AnyNumber,
    AnyText,
    NoneIsRight,
    ends_with,
    first_word_number,
    leaves,
    punishes,
    runs_tests,
    short,
)

from oblr.errors import SettingError
from oblr.problem import Problem
from oblr.rewards.answer import AnswerFormat, BoxedFormat, ExactReward
from oblr.rewards.gold import listed, marked
from oblr.rewards.golds import Golds
from oblr.rewards.math import MathReward
from oblr.rewards.multiple_choice import MultipleChoiceReward
from oblr.rewards.pool import RewardPool
from oblr.rewards.summary import SummaryReward
from oblr.rewards.tryout import TRIED, try_out


@pytest.fixture(scope="module")
def golds():
    """Of a reward, each with processes of its own."""
    pools = {}

    def made(reward, **settings):
        name = repr(reward) if callable(reward) and hasattr(reward, "__name__") else type(reward).__name__
        pool = pools.setdefault(name, RewardPool(reward, workers=1))
        return Golds(reward, pool, lambda text: [1] * len(text), **settings)

    yield made
    for pool in pools.values():
        pool.close()


@contextmanager
def refused(setting, *words):
    with pytest.raises(SettingError) as caught:
        yield
    assert caught.value.setting == setting
    assert all(word in str(caught.value) for word in words), caught.value


def problems(*answers):
    return [Problem(f"p{i}", "?\n(A) 7\n(B) 42", answer) for i, answer in enumerate(answers)]


MATH, EXACT, CHOICE = (
    MathReward(BoxedFormat()),
    ExactReward(AnswerFormat("Result:")),
    MultipleChoiceReward(BoxedFormat()),
)
SOLUTION = "First $x = 1$.\nHence $\\boxed{\\frac{1}{2}}$ is the answer, as was to be shown."


@pytest.mark.parametrize("reward", [MATH, EXACT, CHOICE], ids=["math", "exact", "choice"])
@pytest.mark.parametrize(
    "written",
    [
        '["{}"]',
        "['{}']",
        "#### {}",
        "He has 3 + 4.\n#### {}",
        "So it is $\\boxed{{{}}}$.",
        "<answer>{}</answer>",
        "Answer: {}",
    ],
)
def test_what_is_plainly_meant_is_read_and_said_once(golds, reward, written):
    said = "B" if reward is CHOICE else "34"
    several = problems(*(written.format(said) for _ in range(3)))
    golds = golds(reward)
    (line,) = try_out(golds, several, "data.train")
    assert line.startswith("data.train: 3 of 3 answers are read as")
    assert {problem.answer for problem in golds.read(several)} == {said}


@pytest.mark.parametrize(
    "answer",
    [
        "(1, 2)",
        "[1, 2)",
        "\\{1, 2\\}",
        "[15]",
        "1,234",
        "x = 3",
        "$\\boxed{2}$ or $\\boxed{3}$",
        "\\frac{1}{2}",
        "Answer",
        "7",
    ],
)
def test_what_can_be_paid_stays_as_it_stands(golds, answer):
    golds = golds(MATH)
    assert try_out(golds, problems(answer), "data.train") == []
    assert golds.read(problems(answer)) == problems(answer)


def test_other_texts_in_lists_are_what_programs_print(golds):
    assert golds(EXACT).read(problems("['a']", "[1]", '["12"]')) == problems("['a']", "[1]", "12")


@pytest.mark.parametrize(
    "answer",
    ["{'answer': '34'}", '{"target": 5}', "A proof goes by induction over n.", "", "9" * 1001],
)
def test_what_nothing_can_equal_is_refused_where_it_is_all_and_counted_where_it_is_some(golds, answer):
    golds = golds(MATH)
    with refused("data.train", "any of 2 problems", "problem p0"):
        try_out(golds, problems(answer, answer), "data.train")
    (line,) = try_out(golds, problems("7", answer, "8"), "data.held_out")
    assert line.startswith("data.held_out: 1 of 3 answers can never be paid")
    assert "problem p1" in line
    assert [golds.pays(problem) for problem in problems("7", answer, "8")] == [True, False, True]


def test_prose_may_be_kept(golds):
    assert try_out(golds(MATH, spelled=True), problems("A proof goes by induction over n."), "benchmarks.proofs") == []


def test_of_many_problems_some_are_tried(golds):
    many = problems(*map(str, range(5 * TRIED)))
    golds = golds(MATH)
    assert try_out(golds, many, "data.train") == []
    assert len(golds.known) == TRIED


def test_answers_of_worked_solutions():
    assert marked(SOLUTION) == "\\frac{1}{2}"
    assert marked("It is \\boxed{1} of them. Again: \\boxed{1}.") == "1"
    assert marked("#### Steps\n1. Add.\n#### Result\n7") is marked("nothing") is marked("answer: 7\nWhy? So.") is None
    assert listed('["\\frac{1}{2}"]') == listed('["\\\\frac{1}{2}"]') == "\\frac{1}{2}"  # escaped or not
    assert listed('["1", "2"]') == "1, 2"
    assert listed("{'a': 1}") is listed('[["1"]]') is listed("[]") is listed("[x]") is None


@pytest.mark.parametrize(
    ("reward", "text"), [(AnyText, "vorpal"), (AnyNumber, "Result: 0"), (NoneIsRight, "Result: None")]
)
def test_a_reward_that_pays_whatever_is_said(golds, reward, text):
    with refused("reward", reward.__name__, text, "right on"):
        try_out(golds(reward(AnswerFormat("Result:"))), problems(*map(str, range(40))), "data.train")


@pytest.mark.parametrize(
    "answers", [["True", "False"] * 20, ["0"] * 40, ["0", "0.0", "0/1"], ["A", "B", "C", "D"] * 10], ids=str
)
def test_answers_that_are_right_now_and_then(golds, answers):
    assert try_out(golds(MATH), problems(*answers), "data.train") == []


@pytest.mark.parametrize("reward", [ends_with, punishes, short, SummaryReward()])
def test_rewards_of_any_range_and_such_without_an_answer(golds, reward):
    assert try_out(golds(reward), problems("the cat sat", "a dog", "7"), "data.train") == []


def test_a_reward_that_may_know_better_is_not_refused(golds):
    (line,) = try_out(golds(runs_tests), problems("assert f(1) == 2", "assert f(2) == 3"), "data.train")
    assert "runs_tests gives a response that says the answer no more than nonsense on 2 of 2" in line


def test_a_reward_that_fails_on_all_answers(golds):
    assert try_out(golds(first_word_number), problems("7"), "data.train") == []
    with refused("reward", "first_word_number raised ValueError", "problem p1"):
        try_out(golds(first_word_number), problems("seven", "eight"), "data.train")
    with refused("reward", "leaves raised SystemExit(3)"):
        try_out(golds(leaves), problems("7"), "data.train")


def test_numbers_are_read_by_the_reward_as_the_generator_writes_them(golds):
    """Random golds of every written form that the reader knows: none is refused, none is changed."""
    rng = random.Random(0)
    forms = [
        "{a}",
        "-{a}",
        "{a}/{b}",
        "\\frac{{{a}}}{{{b}}}",
        "{a}.{b}",
        "({a}, {b})",
        "\\sqrt{{{a}}}",
        "{a}\\pi",
        "{a} \\text{{ cm}}",
    ]
    some = [rng.choice(forms).format(a=rng.randint(1, 99), b=rng.randint(2, 9)) for _ in range(200)]
    golds = golds(MATH)
    assert try_out(golds, problems(*some), "data.train") == []
    assert [problem.answer for problem in golds.read(problems(*some))] == some
