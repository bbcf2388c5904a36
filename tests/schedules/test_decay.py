import math

import pytest

from oblr.batch.types import Moments
from oblr.errors import SettingError
from oblr.schedules.decay import CosineSchedule, InverseSquareRootSchedule, LinearSchedule

MOMENTS = Moments(1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (LinearSchedule, lambda t: 1 - t / 8),
        (CosineSchedule, lambda t: 0.5 + 0.5 * math.cos(math.pi * t / 8)),
        (InverseSquareRootSchedule, lambda t: (t + 1) ** -0.5),
    ],
)
def test_decay_after_a_warm_up(kind, expected):
    rates = [kind(lr=0.3, steps=10, warm_up=2)(MOMENTS, step) for step in range(10)]
    assert rates == pytest.approx([0.15, 0.3, *(0.3 * expected(t) for t in range(8))])
    assert all(rate > 0 for rate in rates)


@pytest.mark.parametrize("warm_up", [-1, 10])
def test_a_warm_up_must_be_shorter_than_the_run(warm_up):
    with pytest.raises(SettingError, match=r"^schedule\.warm_up: "):
        LinearSchedule(lr=0.3, steps=10, warm_up=warm_up)
