"""What a step promises, gains and loses, on the pocket policy and on steps made by hand."""

import pytest
import torch
from lost import BASELINES, Judge, Unit, figures_of
from measured import results
from tiers import pocket, sample
from torch.nn.utils import parameters_to_vector

from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel


@pytest.fixture(scope="module")
def judge() -> Judge:
    policy = pocket(2)
    return Judge(PolicyModel(load_model(str(policy.path), "float32"), 1.0), sample(policy))


def test_a_short_step_gains_what_it_promises(judge):
    promised, gained = judge(1e-4 * judge.slope)
    assert gained == pytest.approx(promised.item(), rel=0.01)
    assert promised == pytest.approx(1e-4 * judge.slope.square().sum().item(), rel=1e-4)


def test_a_step_twice_as_long_loses_four_times_as_much(judge):
    """Forth and back together: what is of third order cancels."""

    def lost(length: float) -> float:
        steps = [judge(sign * length * judge.slope) for sign in (1, -1)]
        return sum((promised - gained).item() for promised, gained in steps)

    assert lost(4e-3) == pytest.approx(4 * lost(2e-3), rel=0.05)


def test_the_policy_is_as_it_was(judge):
    before = parameters_to_vector(judge.model.parameters()).clone()
    judge(judge.slope)
    assert parameters_to_vector(judge.model.parameters()).equal(before)


def test_half_of_what_is_lost_to_noise_is_left_by_twice_the_prompts():
    """Promised 1; of a step 0.3 is lost, of the mean of two 0.2: the noise of one takes 0.2."""
    of_unit = torch.tensor([[1, 0.7], [1, 0.7], [1, 0.8]]).double().expand(len(BASELINES), -1, -1)
    unit = Unit(of_unit, torch.tensor([2, 0.8]).double(), torch.tensor([4, 2, 1]).double())
    figures = {figure.name.removeprefix("here"): figure.value for figure in figures_of("here", [unit])}
    assert figures[": promised"] == pytest.approx(100)
    assert figures[", rloo: lost"] == pytest.approx(30)
    assert figures[", rloo: lost to noise"] == pytest.approx(20)
    assert figures[", rloo: best rate of a single step"] == pytest.approx(1 / 0.6)
    assert figures[", none: second moment"] == pytest.approx(0.25)
    assert figures[", twice the rate: gained"] == pytest.approx(0.8 / 0.7)


def test_where_less_variance_pays_and_who_has_least():
    """After 10 steps on sums both gain over RLOO; after 90 none alone, which is the quieter one there by far."""
    of = results("lost")
    places = [name.removesuffix(": promised") for name in of if name.endswith(": promised")]
    assert len(places) == 12

    def gains(place):
        return [of[f"{place}, {name}: gained over RLOO's"]["low"] > 0 for name in ("gradient_weighted", "none")]

    assert gains("pocket, after 10 steps") == [True, True]
    assert gains("pocket, after 90 steps") == [False, True]
    for task in ("pocket", "pocket_rare"):
        ours, none = (of[f"{task}, after 90 steps, {name}: second moment"] for name in ("gradient_weighted", "none"))
        assert none["high"] < 0.2 < 0.5 < ours["low"] < ours["high"] < 1
    graded = [place for place in places if place.startswith("pocket_graded")]
    assert not any(gains(place)[1] for place in graded)


def test_late_steps_lose_about_all_that_they_promise_and_most_of_it_to_noise():
    of = results("lost")
    for task in ("pocket", "pocket_graded"):
        for steps in (30, 90):
            place = f"{task}, after {steps} steps, gradient_weighted"
            lost, noise = of[f"{place}: lost"], of[f"{place}: lost to noise"]
            assert lost["high"] > 100
            assert noise["value"] > lost["value"] / 2
