"""Rewards that run text, found by their source."""

import ast
import functools
import json
import pickle
import random
import re
import subprocess

import pytest
from odd_rewards import short
from reasoning_gym.factory import DATASETS, get_score_answer_fn

from oblr.problem import Problem
from oblr.rewards.answer import AnswerFormat, BoxedFormat, ExactReward
from oblr.rewards.evaluating import evaluates, inert, runs_text
from oblr.rewards.math import MathReward
from oblr.rewards.multiple_choice import MultipleChoiceReward
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.rewards.summary import SummaryReward
from oblr.rewards.weighted_sum import WeightedSum
from oblr.rewards.working import WorkingReward

ANSWER, BOXED = AnswerFormat(), BoxedFormat()
run = eval


def direct(problem, text, completion):
    return eval(text)


def by_another_name(problem, text, completion):
    return run(text)


def as_an_argument(problem, text, completion):
    return sum(map(eval, text.split()))


def within(problem, text, completion):
    def inner():
        return [exec(line) for line in text.split()]

    return len(inner())


def imported_inside(problem, text, completion):
    from sympy import sympify as read

    return float(read(text))


def unpickles(problem, text, completion):
    return pickle.loads(text.encode())


def starts(problem, text, completion):
    return subprocess.run(["python", "-c", text]).returncode


class Method:
    def __init__(self, judge):
        self.judge = judge

    def __call__(self, problem, text, completion):
        return self.judged(text)

    def judged(self, text):
        return self.judge(text)


class Below(Method):
    def judged(self, text):
        return super().judged(text)


@pytest.mark.parametrize(
    "reward",
    [
        *(direct, by_another_name, as_an_argument, within, imported_inside, unpickles, starts),
        *(Method(eval), Below(eval), Method(lambda text: eval(text)), functools.partial(direct, None)),
    ],
    ids=lambda reward: getattr(reward, "__name__", type(reward).__name__),
)
def test_text_is_run(reward):
    assert runs_text(reward)


def reads(problem, text, completion):
    return float(json.loads(text) == ast.literal_eval(problem.answer) and bool(re.compile("x").match(text)))


@pytest.mark.parametrize(
    "reward",
    [
        *(reads, short, Method(float), ExactReward(ANSWER), MathReward(BOXED), MultipleChoiceReward(BOXED)),
        *(SummaryReward(), WorkingReward(ANSWER), ReasoningGymReward(ANSWER), BOXED.extract, ANSWER.extract),
    ],
    ids=lambda reward: getattr(reward, "__name__", type(reward).__name__),
)
def test_text_is_read(reward):
    assert runs_text(reward) == ""


def test_tasks_of_reasoning_gym():
    """Those that a reader finds by their sources, and codeio where a library that it calls brings code of its own."""
    found = {task: runs_text(get_score_answer_fn(task)) for task in DATASETS if task != "composite"}
    assert {task for task, what in found.items() if what} - {"codeio"} == {
        *("binary_matrix", "bitwise_arithmetic", "countdown", "intermediate_integration", "n_queens"),
        *("number_sorting", "polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix"),
        "string_insertion",
    }, found


def test_what_a_reward_says_of_itself():
    def of(task):
        return Problem("p", "?", "!", {"metadata": {"source_dataset": task}})

    gym = ReasoningGymReward(ANSWER)
    both = WeightedSum({"a": {"weight": 1.0, "reward": ExactReward(ANSWER)}, "b": {"weight": 1.0, "reward": gym}})
    for reward in (gym, both):
        assert "eval in spiral_matrix.py" in evaluates(reward, of("spiral_matrix"))
        assert evaluates(reward, of("chain_sum")) == ""
    judge = Method(float)
    judge.evaluates = True
    assert evaluates(judge, of("chain_sum"))


WORDS = """0 12 3.5 .5 7. 0x1f 1e5 2j x C1 _ __ ABC sin exp abs real if else for in lambda not or await import e f b ' "
    '3' \\ . , ; : = := + - * ** / ^ % < ( ) [ ] { } @ ! # ` ~ & () (1) [0] x( ９ ℯ"""
PIECES = [*re.findall(r"\S+", WORDS), " ", " ", "\n", "\t", "\x0c", "\xa0"]
#: What reckons with numbers and looks names up, and does nothing else.
RECKONING = (
    *(ast.Module, ast.Expr, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.Constant),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load, ast.Starred, ast.Name, ast.Call),
)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_inert_only_reckons(seed):
    """By Python's own parser, of texts that are put together at random."""
    draw, found = random.Random(seed), 0
    for _ in range(20_000):
        text = "".join(draw.choices(PIECES, k=draw.randint(1, 9)))
        if not inert(text):
            continue
        try:
            tree = ast.parse(text.strip())
        except (SyntaxError, ValueError):
            continue
        found += 1
        assert all(isinstance(node, RECKONING) for node in ast.walk(tree)), text
        assert {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)} <= {"sin", "exp"}
    assert found > 500  # the parser has had something to say
