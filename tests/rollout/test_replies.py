"""What an engine gives is what it was asked for, or one line. Engines are stand-ins, and say what they are told."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from cases import wide
from test_datamodule import in_a_run

from oblr.batch.types import Sampling
from oblr.errors import EngineDiedError, GarbledError
from oblr.problem import Completion
from oblr.rollout.readback import Block, Part
from oblr.rollout.replies import ask, check_parts, in_order

SAMPLING = Sampling(2, 1.0, 4, (9, 8))
ENDED, CUT = Completion([1, 2, 9], [-0.5, -1.0, 0.0], True), Completion([1, 2, 3, 4], [-0.5] * 4, False)


def gives(groups):
    return SimpleNamespace(generate=lambda prompts, sampling, seeds, done: groups)


def test_what_fits_is_handed_on():
    groups = [[ENDED, CUT], [replace(ENDED, token_ids=[1, 2, 8]), ENDED]]
    assert ask(gives(groups), [[1], [2]], SAMPLING, [0, 1], 10) is groups
    assert ask(gives([[CUT, CUT]]), [[1]], replace(SAMPLING, end_ids=()), [0], None) == [[CUT, CUT]]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([[ENDED, CUT]], "answered 1 prompts of 2"),
        ([[ENDED, CUT]] * 3, "answered 3 prompts of 2"),
        ([[ENDED, CUT], [ENDED]], "gave 1 responses to a prompt, not 2"),
        ([[ENDED, CUT], [ENDED] * 3], "gave 3 responses to a prompt, not 2"),
    ],
)
def test_of_prompts_and_responses_there_are_as_many_as_asked_for(groups, said):
    with pytest.raises(GarbledError, match=said):
        ask(gives(groups), [[1], [2]], SAMPLING, [0, 1], 10)


@pytest.mark.parametrize(
    ("completion", "said"),
    [
        (Completion([], [], False), "of 0 tokens, where 1 to 4"),
        (Completion([1] * 5, [-1.0] * 5, False), "of 5 tokens, where 1 to 4"),
        (Completion([True, 9], [-1.0] * 2, True), "with True among its tokens"),
        (Completion([0.0, 9], [-1.0] * 2, True), "with 0.0 among its tokens"),
        (Completion(["1", 9], [-1.0] * 2, True), "with '1' among its tokens"),
        (Completion([-1, 9], [-1.0] * 2, True), "with token -1, which the policy does not have"),
        (Completion([10, 9], [-1.0] * 2, True), "with token 10, which the policy does not have"),
        (Completion([1, 9], [-1.0], True), "of 2 tokens with 1 log-prob"),
        (Completion([1, 9], [-1.0] * 3, True), "of 2 tokens with 3 log-prob"),
        (Completion([1, 9], [-1.0, float("nan")], True), "with nan for a log-probability"),
        (Completion([1, 9], [-1.0, -float("inf")], True), "with -inf for"),
        (Completion([1, 9], [0.1, -1.0], True), "with 0.1 for"),
        (Completion([1, 9], [None, -1.0], True), "with None for"),
        (Completion([9, 9], [-1.0] * 2, True), "that goes on after its end"),
        (Completion([8, 1, 1, 1], [-1.0] * 4, False), "that goes on after its end"),
        (Completion([1, 2], [-1.0] * 2, True), "that is said to have ended, without an end token"),
        (Completion([1, 9], [-1.0] * 2, False), "that ended, and is said not to have"),
        (Completion([1, 2, 3, 9], [-1.0] * 4, False), "that ended, and is said not to have"),
        (Completion([1, 2, 3], [-1.0] * 3, False), "of 3 tokens that neither ended nor"),
    ],
)
def test_a_response_that_cannot_be(completion, said):
    with pytest.raises(GarbledError, match=f"gave prompt 2 of 2 a response {said}"):
        ask(gives([[ENDED, CUT], [CUT, completion]]), [[1], [2]], SAMPLING, [0, 1], 10)


def test_the_rounding_of_a_certain_token_is_none_of_it():
    nearly = replace(ENDED, logprobs=[-0.5, 1e-6, 0.0])
    assert ask(gives([[nearly, CUT]]), [[1]], SAMPLING, [0], 10) == [[nearly, CUT]]


@pytest.mark.parametrize("numbers", [(0, 0), (1, 2), (0, 1, 2), (0,), (True, False), ("0", "1"), (-1, 0)], ids=str)
def test_numbers_that_are_not_each_once(numbers):
    with pytest.raises(GarbledError, match="not 0 to 1"):
        in_order([(number, ENDED) for number in numbers], 2)


def test_responses_are_put_in_order():
    assert in_order([(1, CUT), (0, ENDED)], 2) == [ENDED, CUT]


BLOCK = Block("w", torch.tensor([3, 5]), torch.tensor([0, 2, 4]))
FITS = Part(torch.tensor([1, 0]), torch.tensor([2]), torch.zeros(2, 1))


@pytest.mark.parametrize(
    "part",
    [
        FITS._replace(rows=torch.tensor([2, 0])),
        FITS._replace(rows=torch.tensor([-1, 0])),
        FITS._replace(rows=torch.tensor([1.0, 0.0])),
        FITS._replace(rows=torch.tensor([[1], [0]])),
        FITS._replace(columns=torch.tensor([3])),
        FITS._replace(values=torch.zeros(3, 1)),
        FITS._replace(values=torch.zeros(2, 2)),
        FITS._replace(values=torch.zeros(2, 1, dtype=torch.int64)),
        FITS._replace(values="0"),
    ],
    ids=range(9),
)
def test_parts_of_other_weights(part):
    assert check_parts([BLOCK], [[FITS]]) == [[FITS]]
    with pytest.raises(GarbledError, match="something else for a block of its w"):
        check_parts([BLOCK], [[FITS], [part]])
    with pytest.raises(GarbledError, match="gave 0 of 1 blocks"):
        check_parts([BLOCK], [[]])


@pytest.mark.parametrize(("failures", "through"), [("gdg", True), ("gg", False), *wide(("g", True), ("dgg", False))])
def test_nonsense_is_a_death_and_twice_in_a_row_the_end(failures, through):
    data = in_a_run(restarts=5)
    data.start_engine()
    prompts, generate, left = (
        [data.encode(problem) for problem in data.held_out[:2]],
        data.engine.generate,
        list(failures),
    )

    def failing(*given, **told):
        if not left:
            return generate(*given, **told)
        if left.pop(0) == "g":
            return generate(*given, **told)[1:]
        raise EngineDiedError("it died")

    right = generate_once(data, prompts)
    data.engine.generate = failing
    if through:
        assert data.generate(prompts, data.sampling, [1, 100]) == right
    else:
        with pytest.raises(GarbledError, match="answered 1 prompts of 2"):
            data.generate(prompts, data.sampling, [1, 100])
    assert not left


def generate_once(data, prompts):
    return data.generate(prompts, data.sampling, [1, 100])
