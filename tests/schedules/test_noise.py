import math

import pytest

from oblr.batch.types import Moments
from oblr.errors import SettingError
from oblr.schedules.noise import NoiseSchedule


def rates(schedule, squares):
    moments = (Moments(n_groups=4, mean_square=square, square_mean=3 * square) for square in squares)
    return [schedule(of_step, step) for step, of_step in enumerate(moments)]


def test_the_rate_is_the_starts_level_over_the_steps_own():
    schedule = NoiseSchedule(0.1, level_steps=2)
    assert rates(schedule, [3.0, 5.0, 8.0, 16.0]) == pytest.approx([0.1, 0.1, 0.1 * 4 / 8, 0.1 * 4 / 16])


def test_less_noise_than_at_the_start_does_not_raise_it():
    assert rates(NoiseSchedule(0.1, level_steps=1), [4.0, 1.0, 1e-9]) == [0.1] * 3


def test_half_a_power_clips_at_the_norm_of_the_start():
    squares = [4.0, 1.0, 25.0, 400.0]
    found = rates(NoiseSchedule(0.1, level_steps=1, power=0.5), squares)
    lengths = [rate * math.sqrt(square) for rate, square in zip(found, squares, strict=True)]
    assert lengths == pytest.approx([0.2, 0.1, 0.2, 0.2])


def test_dead_steps_say_nothing_of_the_noise():
    live = rates(NoiseSchedule(0.1, level_steps=2), [2.0, 4.0, 30.0, 20.0])
    between = rates(NoiseSchedule(0.1, level_steps=2), [0.0, 2.0, 0.0, 4.0, 30.0, 0.0, 20.0])
    assert live[2] == pytest.approx(0.01)
    assert [between[k] for k in (1, 3, 4, 6)] == live


def test_theorem_4s_rate_over_the_starts_with_the_signal_held():
    """``‖∇J‖²/(L E‖ĝ‖²)`` with the same numerator."""
    signal, noises, n, curvature = 2.0, [16.0, 48.0], 4, 10.0
    squares = [signal + noise / n for noise in noises]
    theorem = [signal / (curvature * square) for square in squares]
    assert rates(NoiseSchedule(theorem[0], level_steps=1), squares) == pytest.approx(theorem)


@pytest.mark.parametrize("done", [1, 2, 4])
def test_it_goes_on_from_its_state(done):
    squares = [3.0, 5.0, 8.0, 2.0, 40.0, 7.0]
    whole = rates(NoiseSchedule(0.1, level_steps=3), squares)
    first, second = NoiseSchedule(0.1, level_steps=3), NoiseSchedule(0.1, level_steps=3)
    begun = rates(first, squares[:done])
    second.load_state_dict(first.state_dict())
    assert begun + rates(second, squares[done:]) == whole


@pytest.mark.parametrize(("setting", "value"), [("level_steps", 0), ("power", 0.0), ("power", 1.5)])
def test_bad_settings(setting, value):
    with pytest.raises(SettingError, match=f"schedule.{setting}"):
        NoiseSchedule(0.1, **{setting: value})
