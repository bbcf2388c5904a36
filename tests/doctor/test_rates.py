import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
from doctored import SIZE, changed, fallen, run

from oblr.doctor.rates import left_at_the_end, rate_large, rate_small
from oblr.doctor.tuning import few_prompts
from oblr.statistics.log import Response, StepRecord

pytestmark = pytest.mark.usefixtures("whole")

HEALTHY = run()


@pytest.mark.parametrize("test", [rate_large, rate_small])
def test_a_healthy_run_gets_no_advice(test):
    assert test(HEALTHY) is None
    assert test(HEALTHY[:3]) is None
    assert test([]) is None


def test_steps_that_promise_more_than_there_is():
    found = rate_large(fallen(gain=3.0))
    assert found is not None
    assert "eta0=" in found.fix
    assert rate_large(fallen(gain=0.1)) is None
    assert rate_large(changed(fallen(gain=3.0), plain=False)) is None


def test_what_is_advised_is_of_what_the_run_was_told():
    """Under schedule=normalised that is a length, and under schedule=snr rates are never as large."""
    steps = fallen(gain=3.0)
    largest = max(step.learning_rate for step in steps)
    told, untold = rate_large(changed(steps, eta0=0.8)), rate_large(steps)
    assert told.fix == "eta0=0.2"
    assert told.trl == untold.trl == f"learning_rate={largest / 4:.2g}"
    assert untold.fix == f"eta0={largest / 4:.2g}"


def test_a_gain_that_does_not_come():
    level = [replace(step, learning_rate=0.1 / step.gradient_square) for step in run(solved=lambda t: 0.5)]
    assert rate_large(level) is not None
    solved = [replace(step, learning_rate=0.1 / step.gradient_square) for step in run(solved=lambda t: 0.95)]
    assert rate_large(solved) is None  # there is no more to come
    assert rate_large([replace(step, learning_rate=0.02 / step.gradient_square) for step in HEALTHY]) is None


def test_a_small_rate_is_not_too_large_whatever_the_first_step_was_paid():
    """The reward of the first steps has an error, too."""
    for seed in range(20):
        level = [
            replace(step, learning_rate=1e-3 / step.gradient_square) for step in run(solved=lambda t: 0.5, seed=seed)
        ]
        assert rate_large(level) is None


def ending(steps, at):
    """By an optimizer of any kind, with updates whose slope at their end is ``at`` on average."""
    return [replace(step, onward=at + 0.05 * (-1) ** step.step, plain=False) for step in steps]


def test_updates_that_end_where_they_lead_up():
    """A policy that has broken needs less to be said of it."""
    assert rate_large(ending(HEALTHY, -0.1)) is not None
    assert rate_large(ending(HEALTHY, -0.01)) is None
    assert rate_large(ending(HEALTHY, 0.1)) is None
    assert rate_large(ending(fallen(), -0.01)) is not None
    assert rate_large(ending(fallen(), 0.01)) is None


def test_what_is_lost_bit_by_bit_is_judged_by_the_steps_until_then():
    """Afterwards there is nothing to lose, and ends of updates say nothing."""

    def losing(down, to=0.02, until=16):
        steps = run(48, solved=lambda t: 0.5 + (to - 0.5) * min(t / until, 1))
        return [replace(one, onward=down if one.step <= until else 0.04, plain=False) for one in steps]

    assert rate_large(losing(-0.02)) is not None
    assert rate_large(losing(0.02)) is None
    assert rate_large(losing(-0.02, to=0.45)) is None


@pytest.mark.parametrize("tilt", [-0.02, 0.02])
def test_a_sign_that_is_chance_hides_no_noise(tilt):
    """Of a policy that broke in steps of mere noise the prompts were too few, whichever way its updates ended."""
    steps = run(40, clear=0.0, solved=lambda t: 0.01 if t >= 20 else 0.6)
    found = [replace(one, onward=tilt + 0.3 * (-1) ** one.step) for one in steps]
    assert rate_large(found) is None
    few = few_prompts(found)
    assert few is not None
    assert few.kind == "illness"
    assert rate_large(changed(steps, onward=-0.2)) is not None


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
            steps.append(StepRecord(2 * pair + second + 1, square, squares, responses, rate, onward=onward, plain=True))
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


@pytest.mark.parametrize("fraction", [0.1, 1.0, 2.5])
def test_a_rate_that_is_advised_is_the_best_one(fraction):
    """Both ways, to a fifth; at most four times as large. At the best step there is nothing to say."""
    steps = quadratic(fraction, noise=2.0)
    unpaid = [replace(step, responses=[replace(one, reward=None) for one in step.responses]) for step in steps]
    found = [one for one in (rate_large(unpaid), rate_small(steps)) if one is not None]
    advised = [float(one.fix.split("=")[1]) / max(step.learning_rate for step in steps) for one in found]
    assert advised == [pytest.approx(min(1 / fraction, 4), rel=0.2)][fraction == 1 :]


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
    more = quadratic(0.3, noise=12.0, pairs=40)
    assert 0 < left_at_the_end(more).low < 0.1
    assert few_prompts(more) is not None
    assert rate_small(more) is None


def test_steps_that_a_schedule_shortens_are_small_on_purpose():
    whole, short = quadratic(1.0, noise=2.0), quadratic(0.1, noise=2.0, seed=1)
    assert rate_small(short) is not None
    assert rate_small([*whole, *short]) is None
