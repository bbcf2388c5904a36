import math
import random
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from doctored import SIZE, changed, run

from oblr.doctor.tuning import (
    clip,
    easy_groups,
    few_prompts,
    large_groups,
    left_at_the_end,
    many_prompts,
    pooled_baseline,
    rate_small,
    signal_share,
    split_noise,
    weighted_baseline,
)
from oblr.statistics.log import Response, StepRecord

pytestmark = pytest.mark.usefixtures("whole")

HEALTHY = run()
TESTS = (large_groups, few_prompts, many_prompts, pooled_baseline, easy_groups, rate_small, clip, weighted_baseline)


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


def quadratic(fraction, noise=1.0, pairs=200, seed=0):
    """Pairs of steps ``−η ĝ`` of this fraction of the best single step, where J falls off as ``|θ|²/2``.

    ĝ is the mean of 16 prompts' gradients, with ``noise`` in each of 24 parameters.
    """
    draw, steps = random.Random(seed), list[StepRecord]()
    for pair in range(pairs):
        place, before = [draw.gauss(0, 1) for _ in range(SIZE)], None
        rate = fraction * sum(x * x for x in place) / (sum(x * x for x in place) + SIZE * noise**2 / 16)
        for second in (False, True):
            prompts = [[-x + draw.gauss(0, noise) for x in place] for _ in range(16)]
            mean = [fmean(of) for of in zip(*prompts, strict=True)]
            squares = [sum(x * x for x in of) for of in prompts]
            responses = [Response(q, reward=float(draw.random() < 0.5)) for q in range(16)]
            onward = None if before is None else cosine(before, mean)
            square = sum(x * x for x in mean)
            steps.append(
                StepRecord(2 * pair + second + 1, square, squares, responses, rate, onward=onward, plain=not second)
            )
            place, before = [x + rate * g for x, g in zip(place, mean, strict=True)], mean
    return steps


def cosine(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)


@pytest.mark.parametrize("noise", [0.5, 4.0])
@pytest.mark.parametrize("fraction", [0.05, 0.5, 1.0, 1.5])
def test_nothing_is_left_at_the_end_of_the_best_step(fraction, noise):
    found = left_at_the_end(quadratic(fraction, noise))
    assert found.low < 1 - fraction < found.high
    assert found.high - found.low < 0.4


def test_a_rate_far_below_the_best_is_small_and_the_noise_is_not_what_limits_it():
    small, best = (quadratic(fraction, noise=12.0, pairs=800) for fraction in (0.05, 1.0))
    assert few_prompts(small) is None
    found = rate_small(small)
    assert found is not None
    largest = max(step.learning_rate for step in small)
    assert 2 * largest < float(found.fix.split("=")[1]) < 4.1 * largest
    assert few_prompts(best) is not None
    assert rate_small(best) is None
    assert rate_small(changed(small, plain=False)) is None


def test_what_is_hardly_known_to_be_left_hides_no_noise():
    few = quadratic(1.0, noise=12.0, pairs=20, seed=2)
    left = left_at_the_end(few)
    assert left.value > 1
    assert left.low < 0
    assert few_prompts(few) is not None


def test_steps_that_a_schedule_shortens_are_small_on_purpose():
    whole, short = quadratic(1.0, noise=2.0), quadratic(0.1, noise=2.0, seed=1)
    assert rate_small(short) is not None
    assert rate_small([*whole, *short]) is None


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
