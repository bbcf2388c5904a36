"""Steps that are as long as a schedule says."""

import pytest

from oblr.batch.types import Moments
from oblr.schedules.clipped import ClippedSchedule
from oblr.schedules.constant import ConstantSchedule
from oblr.schedules.decay import LinearSchedule
from oblr.schedules.normalised import NormalisedSchedule
from oblr.schedules.snr import SNRSchedule


def moments(norm):
    return Moments(16, norm**2, 2 * norm**2)


def test_steps_are_as_long_as_the_other_schedule_says():
    schedule = NormalisedSchedule(LinearSchedule(0.3, steps=3))
    lengths = [schedule(moments(norm), step) * norm for step, norm in enumerate((0.5, 7.0, 2.0))]
    assert lengths == pytest.approx([0.3, 0.2, 0.1])


def test_a_gradient_of_zero_makes_no_step():
    assert NormalisedSchedule(ConstantSchedule(0.3))(moments(0.0), 0) == 0


def test_it_needs_plain_steps_whatever_is_inside_and_around():
    assert not ClippedSchedule(ConstantSchedule(0.3)).needs_plain_steps
    assert ClippedSchedule(NormalisedSchedule(ConstantSchedule(0.3))).needs_plain_steps


def test_it_remembers_what_is_inside():
    first, second = (NormalisedSchedule(SNRSchedule(0.3, "ema")) for _ in range(2))
    first(moments(2.0), 0)
    second.load_state_dict(first.state_dict())
    assert second(moments(0.7), 1) == first(moments(0.7), 1)
    assert first.needs_noise
