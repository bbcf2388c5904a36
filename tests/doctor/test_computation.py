import math
from dataclasses import replace

import pytest
import torch
from doctored import responses, run

from oblr.doctor.computation import _bfloat16, coarse_ratio, duplicates, foreign_gradient, stale_engine

pytestmark = pytest.mark.usefixtures("whole")

HEALTHY = run()


def longer(steps, factor, estimated=False):
    return [
        replace(step, gradient_square=factor * step.moments.square_mean, estimated=estimated, layers={"mlp": 1.0})
        for step in steps
    ]


def test_a_gradient_longer_than_its_parts_is_none_of_theirs():
    assert foreign_gradient(HEALTHY) is None
    assert foreign_gradient(longer(HEALTHY, 0.99)) is None
    found = foreign_gradient(longer(HEALTHY, 1.5))
    assert found is not None
    assert (found.kind, found.step) == ("illness", 1)
    assert "mlp" in found.said


def test_estimated_norms_have_to_be_exceeded_twofold():
    assert foreign_gradient(longer(HEALTHY, 1.5, estimated=True)) is None
    assert foreign_gradient(longer(HEALTHY, 2.5, estimated=True)) is not None


def test_two_steps_are_no_pattern():
    assert foreign_gradient([*longer(HEALTHY[:2], 3), *HEALTHY[2:]]) is None


def spread(steps, wide=0.05):
    """Ratios as they are when the policy has moved since."""
    return responses(steps, lambda one, step, place: replace(one, log_ratio=wide * math.sin(1.7 * step + place)))


def test_ratios_on_the_grid_of_bfloat16():
    def rounded(one, step, place):
        return replace(one, log_ratio=math.log(torch.tensor(one.log_ratio).exp().bfloat16().item()))

    moved = spread(HEALTHY)
    assert coarse_ratio(HEALTHY) is None
    assert coarse_ratio(moved) is None
    found = coarse_ratio(responses(moved, rounded))
    assert found is not None
    assert found.sure == "certain"
    half = responses(moved, lambda one, step, place: rounded(one, step, place) if place % 2 else one)
    assert coarse_ratio(half) is None


def test_logarithms_on_the_grid():
    def rounded(one, step, place):
        return replace(one, log_ratio=torch.tensor(one.log_ratio).bfloat16().item())

    assert coarse_ratio(responses(spread(HEALTHY), rounded)) is not None


def test_rounding_is_torchs():
    values = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 4 - 2  # none half way between two
    assert [_bfloat16(value) for value in values.tolist()] == values.bfloat16().float().tolist()


def drifting(steps, of_step):
    def drifted(one, step, place):
        return replace(one, log_ratio=of_step(step) * math.sqrt(one.length) * (-1) ** place)

    return responses(steps, drifted)


def test_an_engine_that_gets_weights_now_and_then():
    found = stale_engine(drifting(HEALTHY, lambda step: 0.02 * ((step - 1) % 8) + 1e-7))
    assert found is not None
    assert "9, 17, 25" in found.evidence


def test_an_engine_that_never_does():
    assert stale_engine(drifting(HEALTHY, lambda step: 0.02 * step)) is not None


def test_rounding_and_a_policy_that_comes_to_rest_are_no_stale_engine():
    assert stale_engine(HEALTHY) is None
    assert stale_engine(drifting(HEALTHY, lambda step: 0.03)) is None
    assert stale_engine(drifting(HEALTHY, lambda step: 0.09 * 0.7**step)) is None


def test_steps_that_learn_again_from_the_same_responses_are_off_policy_and_not_stale():
    twice = []
    for step in drifting(HEALTHY, lambda step: 1e-7):
        again = drifting([step], lambda _: 0.05)[0]
        twice += [replace(step, step=2 * step.step - 1), replace(again, step=2 * step.step)]
    assert stale_engine(twice) is None


def test_rollouts_that_are_meant_to_be_old_are_not_stale():
    """All but the first are of the step before."""
    drifted = drifting(HEALTHY, lambda step: 0.2)
    assert stale_engine(drifted) is not None
    assert stale_engine([replace(step, age=min(step.step - 1, 1)) for step in drifted]) is None


def copied(steps, logprob, copies=4):
    """In step 20 the first places of group 3 hold the same text."""

    def same(one, step, place):
        return replace(one, text="the same", length=9, logprob=logprob) if 24 <= place < 24 + copies else one

    return responses(steps, same, only=[20])


def test_copies_beyond_chance():
    found = duplicates(copied(HEALTHY, -10.0))
    assert found is not None
    assert (found.step, found.response) == (20, 24)
    assert "the same" in found.said


def test_lost_bytes_and_other_lengths_are_no_copies():
    def unreadable(one, step, place):
        return replace(one, text=f"{one.text} \ufffd")

    def longer_each(one, step, place):
        return replace(one, length=place)

    for alter in (unreadable, longer_each):
        assert duplicates(responses(copied(HEALTHY, -10.0), alter)) is None


def test_likely_texts_come_often():
    assert duplicates(HEALTHY) is None
    assert duplicates(copied(HEALTHY, -0.5)) is None
    assert duplicates(copied(HEALTHY, -10.0, copies=1)) is None
    assert duplicates(copied(HEALTHY, None)) is None


def test_a_text_of_rare_tokens_beside_likely_ones():
    def odd(one, step, place):
        return replace(one, logprob=-12.0) if place == 25 else one

    assert duplicates(responses(copied(HEALTHY, -0.1, copies=8), odd, only=[20])) is None
