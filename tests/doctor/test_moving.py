from dataclasses import replace

import pytest
import torch
from baseline_steps import baseline, make
from doctored import fallen, responses, run

from oblr.doctor.moving import (
    broke,
    entropy_collapse,
    one_hand,
    one_response,
    policy_broke,
    solved,
    truncated,
)

pytestmark = pytest.mark.usefixtures("whole")

HEALTHY = run()


def pulled(factor, rate=1.0, alignment=None):
    """Response 5 of step 20 is as long as the step, which is ``factor`` times its usual length."""

    def pull(one, step, place):
        own = factor**2 * HEALTHY[19].gradient_square
        top = {"peak": 12, "peak_share": 0.4, "peak_text": "7"}
        return replace(one, gradient_square=own, alignment=alignment, **top) if place == 5 else one

    steps = responses(HEALTHY, pull, only=[20])
    at = steps[19]
    long = replace(
        at, gradient_square=factor**2 * at.gradient_square, learning_rate=rate * 0.02, layers={"head": 0.7, "mlp": 0.3}
    )
    return [*steps[:19], long, *steps[20:]]


def test_one_response_makes_a_step_long():
    found = one_response(pulled(30))
    assert found is not None
    assert (found.step, found.response) == (20, 5)
    assert "head (70 %)" in found.evidence
    assert "token 12 “7” has 40 %" in found.evidence


def test_a_step_that_is_long_because_of_many_or_was_shortened_is_not_its():
    assert one_response(HEALTHY) is None
    assert one_response(pulled(1.1)) is None
    assert one_response(pulled(30, rate=1 / 30)) is None
    assert one_response(pulled(30, alignment=0.3)) is None


def test_a_policy_that_breaks():
    assert broke(fallen()) == 11
    found = policy_broke(fallen())
    assert found is not None
    assert found.step == 12


def test_a_bad_step_and_a_slow_decline_break_nothing():
    assert broke(HEALTHY) is None
    assert broke(fallen(until=14)) is None
    assert broke(run(solved=lambda t: 0.9 - 0.02 * t)) is None


def quiet(steps, last):
    def calm(one, step, place):
        return replace(one, entropy=last if step > 20 else 0.3)

    return responses(steps, calm)


def test_a_policy_that_explores_no_more():
    stuck = run(solved=lambda t: 0.4)
    assert entropy_collapse(quiet(stuck, 0.02)) is not None
    assert entropy_collapse(quiet(stuck, 0.05)) is None
    assert solved(HEALTHY)
    assert entropy_collapse(quiet(HEALTHY, 0.02)) is None


def cut(share):
    return responses(HEALTHY, lambda one, step, place: replace(one, finished=place % 10 >= 10 * share))


def test_responses_that_are_cut():
    assert truncated(HEALTHY) is None
    assert truncated(cut(0.5)) is None
    assert truncated(cut(0.7)) is not None


def weighed(weight, every=1, name="gradient_weighted", **settings):
    """One response of every group of so many steps has this weight; advantages are the paper's, or this baseline's."""
    chosen = baseline(name, **settings)
    steps = responses(
        HEALTHY,
        lambda one, step, place: replace(one, square_norm=weight if place % 8 == 0 and step % every == 0 else 1.0),
    )

    def told(step):
        of_each = {name: [getattr(one, name) for one in step.responses] for name in ("reward", "length", "square_norm")}
        rewards, lengths, weights = (torch.tensor(of).reshape(-1, 8) for of in of_each.values())
        groups = make(rewards, lengths, weights.double())
        advantages = chosen(groups).flatten().tolist()
        chosen.learn(groups)
        return [replace(one, advantage=advantage) for one, advantage in zip(step.responses, advantages, strict=True)]

    return [replace(step, responses=told(step)) for step in steps]


def test_one_response_with_all_the_weight():
    assert one_hand(HEALTHY) is None
    assert one_hand(weighed(50.0)) is None
    assert one_hand(weighed(500.0)) is not None
    assert one_hand(weighed(500.0, every=2)) is None


@pytest.mark.parametrize("name", ["rloo", "group_mean", "group_mean_std", "batch_mean", "opo", "none"])
def test_a_baseline_without_weights_hangs_on_no_response(name):
    assert one_hand(weighed(500.0, name=name)) is None


@pytest.mark.parametrize("prior", ["step", "past"])
def test_a_baseline_with_a_prior_hangs_on_no_response(prior):
    assert one_hand(weighed(500.0, prior=prior)) is None


def test_a_few_groups_are_no_illness():
    few = responses(weighed(500.0), lambda one, step, place: one if one.group == 0 else replace(one, square_norm=None))
    assert one_hand(few) is not None  # ten of ten
    assert one_hand(few[:9]) is None
    some = responses(few, lambda one, step, place: replace(one, square_norm=1.0) if step % 5 < 2 else one)
    assert one_hand(some) is None  # six of ten
