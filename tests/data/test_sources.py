import math
import re

import pytest

from oblr.data.mixture import Mixture
from oblr.data.procedural import ReasoningGymProblems
from oblr.data.prompts import PromptFormat
from oblr.data.shuffled import Shuffled
from oblr.errors import SettingError
from oblr.problem import Completion
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.golds import Golds
from oblr.rewards.pool import RewardPool
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.rewards.tryout import try_out

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
        ("no_such_task", "{question}", {}, "data.train.task"),
        ("chain_sum", "{question}", {"min_terms": 5, "max_terms": 3}, "data.train.task"),
        ("chain_sum", "{question}", {"no_such": 1}, "data.train.task"),
        ("chain_sum", "{no_such}", {}, "data.train.template"),
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


@pytest.mark.parametrize(
    "task", ["boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour", "pool_matrix"]
)
def test_tasks_that_name_no_answer_or_take_small_seeds_have_problems(task):
    source = ReasoningGymProblems(task, size=10**9, seed=2**40)
    assert all(isinstance(source[index].answer, str) for index in (0, 1, 10**9 - 1))


def test_an_example_of_several_answers_is_the_answer():
    reward = ReasoningGymReward(AnswerFormat())
    for task in ("graph_color", "propositional_logic", "rubiks_cube"):
        for problem in ReasoningGymProblems(task, size=5, seed=1):
            assert reward(problem, f"Answer: {problem.answer}", Completion([1], [0.0], True)) == 1


def test_what_a_scorer_cannot_read_is_wrong_and_nothing_is_printed(capfd):
    reward = ReasoningGymReward(AnswerFormat())
    for task in ("boxnet", "prime_factorization", "pool_matrix", "tower_of_hanoi"):
        (problem,) = ReasoningGymProblems(task, size=1, seed=1)
        for answer in ("0", "x", "[]", "Move disk 1 from Peg 9 to Peg 8"):
            assert reward(problem, f"Answer: {answer}", Completion([1], [0.0], True)) == 0
    assert capfd.readouterr() == ("", "")


def test_a_task_that_makes_all_its_problems_at_once_has_not_too_many():
    with pytest.raises(
        SettingError, match=r"^data\.train\.size: 'acre' makes all of its 1,000,000,000 problems at once"
    ):
        ReasoningGymProblems("acre", size=10**9, seed=1)


def test_scorers_that_pay_for_anything_are_found():
    reward = ReasoningGymReward(AnswerFormat())
    pool = RewardPool(reward, workers=1)
    golds = Golds(reward, pool, lambda text: [1] * len(text))
    for task in ("chain_sum", "rush_hour", "course_schedule"):
        assert try_out(golds, list(ReasoningGymProblems(task, size=40, seed=1)), "data.train") == []
    for task in ("game_of_life_halting", "coin_flip"):
        with pytest.raises(SettingError, match=r"^reward: by ReasoningGymReward, the response .* is right on"):
            try_out(golds, list(ReasoningGymProblems(task, size=40, seed=1)), "data.train")
    pool.close()
