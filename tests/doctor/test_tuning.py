from dataclasses import replace
from statistics import pstdev

import pytest
from doctored import changed, responses, run

from oblr.doctor.rates import signal_share
from oblr.doctor.tuning import (
    clip,
    easy_groups,
    few_prompts,
    large_groups,
    many_prompts,
    pooled_baseline,
    split_noise,
    weighted_baseline,
)

pytestmark = pytest.mark.usefixtures("whole")

HEALTHY = run()
TESTS = (large_groups, few_prompts, many_prompts, pooled_baseline, easy_groups, clip, weighted_baseline)


@pytest.mark.parametrize("test", TESTS)
def test_a_healthy_run_gets_no_advice(test):
    assert test(HEALTHY) is None
    assert test(HEALTHY[:3]) is None
    assert test([]) is None


def test_the_split_of_the_noise():
    """Noise that prompts have is not in the part of sampling; the parts agree where they have none."""
    whole, sampled = split_noise(run(count=60, solved=lambda t: 0.5))
    assert sum(sampled) == pytest.approx(sum(whole), rel=0.15)
    whole, sampled = split_noise(run(count=60, solved=lambda t: 0.5, prompt_noise=1.0))
    assert sum(sampled) < 0.5 * sum(whole)


def test_groups_larger_than_pays():
    found = large_groups(run(prompts=2, size=64, prompt_noise=1.0))
    assert found is not None
    assert found.fix == "rollout.prompts_per_step=16 rollout.group_size=8"
    assert large_groups(run(prompts=2, size=64, clear=0.0)) is None
    assert large_groups(run(prompts=16, size=8, prompt_noise=1.0)) is None


def test_steps_that_are_mostly_noise():
    found = few_prompts(run(prompts=4, clear=0.02, count=60))
    assert found is not None
    assert found.fix == "rollout.prompts_per_step=16"


def test_noise_that_keeps_the_reward_down():
    assert few_prompts(run(prompts=8, clear=0.1, solved=lambda t: 0.4, seed=1)) is not None
    assert few_prompts(run(prompts=8, clear=0.1, seed=1)) is None


def test_steps_that_are_clearer_than_pays():
    found = many_prompts(run(prompts=32, clear=3.0, solved=lambda t: 0.5))
    assert found is not None
    assert found.fix == "rollout.prompts_per_step=16"
    assert signal_share(run(prompts=32, clear=3.0, solved=lambda t: 0.5)).low > 0.9


def test_one_baseline_for_all_prompts():
    assert pooled_baseline(run(pooled=True)) is not None
    assert pooled_baseline(run(pooled=True, solved=lambda t: 0.5)) is None  # no group of equal rewards shows it
    quiet = responses(run(pooled=True), lambda one, step, place: replace(one, advantage=0.3 * one.advantage))
    assert pooled_baseline(quiet) is None  # as with a prior, whatever it is that makes them small


def test_prompts_that_are_always_solved():
    assert easy_groups(run(solved=lambda t: 0.99)) is not None
    assert easy_groups(run(solved=lambda t: 0.94)) is None


def test_a_few_long_steps():
    steps = run(count=60)
    long = [replace(step, gradient_square=step.gradient_square * (100 if step.step % 20 == 0 else 1)) for step in steps]
    assert clip(long) is not None
    assert clip(steps) is None
    shortened = [replace(step, clipped=0.1 if step.step % 20 == 0 else 1.0) for step in long]
    assert clip(shortened) is None
    assert clip(changed(long, learning_rate=0.0)) is None


def uneven(step):
    """Right responses have forty times the squared norm of wrong ones, and parts in the gradient that fit."""
    longer = [
        replace(one, square_norm=40 * one.square_norm, gradient_square=40 * one.gradient_square)
        if one.reward == 1
        else one
        for one in step.responses
    ]
    return replace(step, responses=longer)


def test_rewards_weighted_by_norms_would_leave_less_noise():
    """Where norms and rewards go together; a factor that all advantages have in common does not matter."""
    steps = [uneven(step) for step in run(solved=lambda t: 0.3)]
    found = weighted_baseline(steps)
    assert found is not None
    assert found.fix == "baseline=gradient_weighted"
    scaled = [
        replace(step, responses=[replace(one, advantage=7 / 8 * one.advantage) for one in step.responses])
        for step in steps
    ]
    assert weighted_baseline(scaled) == found
    assert weighted_baseline([uneven(step) for step in run(solved=lambda t: 0.3, pooled=True)]) is None


def test_of_advantages_in_units_of_a_groups_spread_no_baseline_is_compared():
    def standard(one, step):
        group = [other.reward for other in step.responses if other.group == one.group]
        return replace(one, advantage=one.advantage / (pstdev(group) + 1e-4))

    steps = [uneven(step) for step in run(solved=lambda t: 0.3)]
    steps = [replace(step, responses=[standard(one, step) for one in step.responses]) for step in steps]
    assert weighted_baseline(steps) is None
