import math
import statistics

import pytest

from oblr.batch.types import Moments
from oblr.schedules.annealed import AnnealedSchedule
from oblr.schedules.clipped import ClippedSchedule
from oblr.schedules.constant import ConstantSchedule
from oblr.schedules.snr import SNRSchedule

NORMS = (3.0, 8.0, 0.0, 2.0, 40.0, 7.0, 1.0)
STEPS = [Moments(4, norm**2, 3 * norm**2 + 1) for norm in NORMS]


def test_no_step_is_longer_than_the_median_gradient_would_make_it():
    clipped, seen = ClippedSchedule(ConstantSchedule(0.1)), []
    for t, (norm, moments) in enumerate(zip(NORMS, STEPS, strict=True)):
        rate = clipped(moments, t)
        if norm == 0:
            assert rate == 0.1
            continue
        seen.append(norm)
        assert rate * norm == pytest.approx(0.1 * min(norm, statistics.median(seen)))
    assert len(seen) == len(clipped.norms) == 6


@pytest.mark.parametrize(("quantile", "expected"), [(0.0, 2.0), (0.25, 2.75), (0.5, 5.0), (1.0, 8.0)])
def test_quantiles_are_interpolated(quantile, expected):
    clipped = ClippedSchedule(ConstantSchedule(1.0), quantile)
    for norm in (8.0, 2.0, 7.0):
        clipped(Moments(4, norm**2, 1e4), 0)
    assert clipped(Moments(4, 9.0, 1e4), 0) == pytest.approx(min(1, expected / 3))


def test_what_is_inside_sees_every_step_and_is_resumed():
    def make():
        return AnnealedSchedule(ClippedSchedule(SNRSchedule(0.1, "ema")), len(STEPS))

    whole, first, second = make(), make(), make()
    expected = [whole(moments, t) for t, moments in enumerate(STEPS)]
    for t in range(3):
        first(STEPS[t], t)
    state = first.state_dict()
    second.load_state_dict(state)
    first(STEPS[3], 3)  # a state is what it was when it was taken
    assert [second(STEPS[t], t) for t in range(3, len(STEPS))] == expected[3:]
    assert math.prod(expected[:-1]) > 0


def test_it_needs_noise_where_what_is_inside_does():
    assert ClippedSchedule(SNRSchedule(0.1)).needs_noise
    assert not ClippedSchedule(ConstantSchedule(0.1)).needs_noise
