from dataclasses import replace

import pytest
from doctored import changed, run

from oblr.doctor.tuning import (
    clip,
    easy_groups,
    few_prompts,
    large_groups,
    many_prompts,
    pooled_baseline,
    rate_small,
    signal_share,
    split_noise,
)

HEALTHY = run()
TESTS = (large_groups, few_prompts, many_prompts, pooled_baseline, easy_groups, rate_small, clip)


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


def test_prompts_that_are_always_solved():
    assert easy_groups(run(solved=lambda t: 0.99)) is not None
    assert easy_groups(run(solved=lambda t: 0.94)) is None


def test_steps_that_hardly_move():
    slow = run(clear=2.0, solved=lambda t: 0.35 + 0.001 * t)
    found = rate_small(slow)
    assert found is not None
    assert found.trl == "learning_rate=0.08"
    assert rate_small(run(clear=2.0)) is None
    assert rate_small(run(clear=0.05, solved=lambda t: 0.35)) is None


def test_a_few_long_steps():
    steps = run(count=60)
    long = [replace(step, gradient_square=step.gradient_square * (100 if step.step % 20 == 0 else 1)) for step in steps]
    assert clip(long) is not None
    assert clip(steps) is None
    shortened = [replace(step, clipped=0.1 if step.step % 20 == 0 else 1.0) for step in long]
    assert clip(shortened) is None
    assert clip(changed(long, learning_rate=0.0)) is None
