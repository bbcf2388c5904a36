"""What others have proposed does what its words say."""

import math

import neighbours  # noqa: F401
import pytest
import torch
from rivals import ClippedAdamW, GatedSGD, RootSNRSchedule, TimedSchedule, VLNormLoss

from oblr.batch.types import Moments
from oblr.schedules.snr import SNRSchedule


def moments(norm):
    return Moments(16, norm**2, 2 * norm**2)


def weight(*shape):
    return torch.nn.Parameter(torch.zeros(shape))


def test_a_root_is_the_factors():
    factor = SNRSchedule(eta0=1.0, estimator="debiased")(moments(1.2), 0)
    assert 0.1 < factor < 0.95
    assert RootSNRSchedule(eta0=0.2, estimator="debiased")(moments(1.2), 0) == pytest.approx(0.2 * factor**0.5)


def test_a_rate_falls_from_where_the_noise_surges_and_not_before():
    schedule = TimedSchedule(1.0)
    squares = [1.0] * 30 + [4.0] * 200
    rates = [schedule(moments(math.sqrt(square)), step) for step, square in enumerate(squares)]
    start = schedule.start
    assert 30 <= start < 35
    assert rates[: start + 1] == [1.0] * (start + 1)
    assert rates[start + round(1.8 * start)] == pytest.approx(0.5, rel=0.02)
    assert rates[-1] == 0.1


def test_noise_that_does_not_surge_leaves_the_rate_alone():
    schedule = TimedSchedule(1.0)
    assert {schedule(moments(1.0 + step % 2 / 10), step) for step in range(100)} == {1.0}


def test_adamw_sees_gradients_no_longer_than_their_median():
    first, second = weight(3), weight(2, 2)
    optimizer = ClippedAdamW([first, second], lr=0.0, betas=(0.0, 0.0))
    seen = []
    for length in (1.0, 3.0, 2.0, 9.0):
        for p in (first, second):
            p.grad = torch.full_like(p, length / math.sqrt(7))
        optimizer.step()
        moments = (optimizer.state[p]["exp_avg"] for p in (first, second))
        seen.append(math.sqrt(sum(m.square().sum().item() for m in moments)))
    assert seen == pytest.approx([1.0, 2.0, 2.0, 2.5], rel=1e-4)


def test_a_step_is_left_out_where_the_heads_gradient_surges():
    head, other = weight(9, 2), weight(3, 2)
    optimizer = GatedSGD([other, head], lr=1.0)
    moved = []
    for length in (1.0, 1.1, 5.0, 1.0):
        before = head.detach().clone()
        head.grad, other.grad = torch.full_like(head, length), torch.full_like(other, 100.0)
        optimizer.step()
        moved.append(not torch.equal(head, before))
    assert moved == [True, True, False, True]


def test_a_responses_share_falls_with_its_length():
    factors = VLNormLoss().length_factors(torch.tensor([[2, 4], [3, 3]]))
    assert factors.tolist() == [[pytest.approx(4 / 3), pytest.approx(2 / 3)], [1.0, 1.0]]
