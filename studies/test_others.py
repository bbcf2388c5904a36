"""What policies of the tasks that are no sums are pretrained on, and what is paid for it."""

from itertools import islice

import neighbours  # noqa: F401
import pytest
from hydra.utils import instantiate
from others import spelled, turned
from training import composed

from oblr.problem import Completion

END = 1


def of(task):
    """The task's problems, the first ten held out, and its reward."""
    cfg = composed(["paths.output_dir=unused"], task)
    problems = instantiate(cfg.data.train)
    return [problems[i] for i in range(200)], [problems[i] for i in range(10)], instantiate(cfg.reward)


def paid(reward, problem, text, finished=True):
    return float(reward(problem, text, Completion([END], [0.0], finished)))


def test_words_are_spelled_right_and_no_held_out_one_is():
    problems, held_out, reward = of("backward")
    by_prompt = {problem.prompt: problem for problem in problems}
    examples = list(spelled(problems, held_out))
    assert len(examples) > 100
    assert not {prompt for prompt, _, _ in examples} & {problem.prompt for problem in held_out}
    assert all(ends and paid(reward, by_prompt[prompt], text) == 1 for prompt, text, ends in examples)
    assert paid(reward, problems[0], f"Answer: {problems[0].answer[:-1]}") == 0


def test_matrices_are_paid_by_the_cell():
    problems, held_out, reward = of("rotated")
    by_prompt = {problem.prompt: problem for problem in problems}
    examples = list(turned(problems, held_out, seed=1))
    given = [paid(reward, by_prompt[prompt], text, ends) for prompt, text, ends in examples]
    assert {round(9 * one) for one in given} > {0, 4, 5, 6, 9}
    assert all((9 * one) % 1 < 1e-9 for one in given)
    assert all(ends or not one for (_, _, ends), one in zip(examples, given, strict=True))
    assert 0.15 < sum(one == 1 for one in given) / len(given) < 0.35


@pytest.mark.parametrize("text", ["", "1 2 3", "1 2 3\n4 5 6\n7 8 9\n0", "1 2 3 4 5 6 7 8 9"])
def test_an_answer_of_another_shape_is_paid_nothing(text):
    problems, _, reward = of("rotated")
    assert paid(reward, problems[0], text) == 0


def test_the_same_seed_gives_the_same_corpus():
    problems, held_out, _ = of("rotated")
    first, again, other = (list(islice(turned(problems, held_out, seed), 50)) for seed in (1, 1, 2))
    assert first == again != other
