import math
import re

import pytest

from oblr.data.mixture import Mixture
from oblr.data.procedural import ReasoningGymProblems
from oblr.data.prompts import PromptFormat
from oblr.data.shuffled import Shuffled
from oblr.errors import SettingError

PARAMS = {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}


def chain_sums(size=200, seed=0):
    return ReasoningGymProblems("chain_sum", size, seed, "{expression} =\n", PARAMS)


def test_procedural_problems_are_right_and_reproducible():
    problems, again = chain_sums(), chain_sums()
    for problem, same in zip(problems, again, strict=True):
        assert problem == same
        assert eval(problem.prompt.removesuffix("=\n")) == int(problem.answer)


def test_neighbouring_seeds_share_no_problems_shifted_by_one():
    first, second = ([p.prompt for p in chain_sums(seed=seed)] for seed in (0, 1))
    assert first[1:] != second[:-1]
    assert len(set(first) & set(second)) < 20


@pytest.mark.parametrize(
    ("task", "template", "params", "setting"),
    [
        ("no_such_task", "{question}", {}, "data.task"),
        ("chain_sum", "{question}", {"min_terms": 5, "max_terms": 3}, "data.task"),
        ("chain_sum", "{question}", {"no_such": 1}, "data.task"),
        ("chain_sum", "{no_such}", {}, "data.template"),
    ],
)
def test_bad_procedural_settings(task, template, params, setting):
    with pytest.raises(SettingError, match=rf"^{re.escape(setting)}: "):
        ReasoningGymProblems(task, 10, 0, template, params)


def test_the_prompt_of_a_procedural_question_is_formed():
    problems = ReasoningGymProblems("chain_sum", 3, 0, "{expression} =", PARAMS, PromptFormat("Add: {prompt}"))
    assert [p.prompt for p in problems] == [f"Add: {p.prompt.strip()}" for p in chain_sums(3)]


def test_shuffled_passes_are_permutations_that_depend_on_the_seed_and_differ():
    source = chain_sums()
    first, again, other = (Shuffled(source, seed) for seed in (1, 1, 2))
    orders = [[shuffled[start + i].id for i in range(200)] for shuffled in (first, other) for start in (0, 200, 400)]
    assert len({tuple(order) for order in orders}) == 6
    assert all(sorted(order) == sorted(p.id for p in source) for order in orders)
    assert [again[i].id for i in reversed(range(600))] == [i for order in reversed(orders[:3]) for i in reversed(order)]


def mixture(seed=0, weights=(3, 1)):
    sources = {"short": Shuffled(chain_sums(30), 1), "long": Shuffled(chain_sums(500, seed=1), 1)}
    return Mixture(sources, dict(zip(sources, weights, strict=True)), seed)


def test_mixtures_have_their_shares_and_any_problem_can_be_had_first():
    parts = mixture().sources
    problems = [mixture()[i].prompt for i in range(400)]
    late, ids = mixture(), {name: {p.prompt for p in part} for name, part in parts.items()}
    assert late[399].prompt == problems[399]
    assert [late[i].prompt for i in range(400)] == problems
    assert [mixture(seed=1)[i].prompt for i in range(400)] != problems
    short = [prompt for prompt in problems if prompt in ids["short"]]
    assert len(short) == pytest.approx(300, abs=3 * (400 * 3 / 16) ** 0.5)
    assert short[:90] == [parts["short"][i].prompt for i in range(90)]  # three passes, each in its own order


def test_weights_go_by_name():
    sources = mixture().sources
    turned = Mixture(sources, {"long": 1, "short": 3}, seed=0)
    assert [turned[i].prompt for i in range(40)] == [mixture()[i].prompt for i in range(40)]


@pytest.mark.parametrize(
    "weights",
    [
        {"short": 1},
        {"short": 0, "long": 0},
        {"short": 2, "long": -1},
        {"short": 2, "long": math.nan},
        {"short": math.inf, "long": 1},
        {"short": 0, "long": 1},
    ],
)
def test_bad_weights(weights):
    with pytest.raises(SettingError, match=r"^data\.weights: "):
        Mixture(mixture().sources, weights, seed=0)
