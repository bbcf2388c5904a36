import pytest

from oblr.batch.types import Moments
from oblr.schedules.annealed import AnnealedSchedule
from oblr.schedules.constant import ConstantSchedule
from oblr.schedules.decay import LinearSchedule
from oblr.schedules.noise import NoiseSchedule
from oblr.schedules.snr import SNRSchedule

STEPS = [Moments(4, square, 3 * square) for square in (3.0, 8.0, 2.0, 40.0, 7.0)]


def test_a_constant_rate_becomes_the_linear_schedule():
    annealed, linear = AnnealedSchedule(ConstantSchedule(0.1), 5), LinearSchedule(0.1, 5)
    assert [annealed(moments, t) for t, moments in enumerate(STEPS)] == pytest.approx(
        [linear(moments, t) for t, moments in enumerate(STEPS)]
    )


def test_beyond_the_last_step_it_stays_at_zero():
    assert AnnealedSchedule(ConstantSchedule(0.1), 5)(STEPS[0], 7) == 0


@pytest.mark.parametrize("make", [lambda: NoiseSchedule(0.1, level_steps=2), lambda: SNRSchedule(0.1)])
def test_what_is_inside_sees_every_step_and_is_resumed(make):
    plain, whole, first, second = make(), *(AnnealedSchedule(make(), 5) for _ in range(3))
    expected = [plain(moments, t) * (1 - t / 5) for t, moments in enumerate(STEPS)]
    assert [whole(moments, t) for t, moments in enumerate(STEPS)] == pytest.approx(expected)
    for t in range(3):
        first(STEPS[t], t)
    second.load_state_dict(first.state_dict())
    assert [second(STEPS[t], t) for t in (3, 4)] == pytest.approx(expected[3:])


def test_it_needs_noise_where_what_is_inside_does():
    assert AnnealedSchedule(SNRSchedule(0.1), 5).needs_noise
    assert not AnnealedSchedule(NoiseSchedule(0.1), 5).needs_noise
