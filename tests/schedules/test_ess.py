import math

import pytest
from taken_steps import make_batch, take_steps

from oblr.batch.types import Moments
from oblr.schedules.base import Schedule
from oblr.schedules.constant import ConstantSchedule
from oblr.schedules.ess import ESSSchedule
from oblr.schedules.snr import SNRSchedule


def test_the_rate_falls_with_the_root_of_the_share_that_is_fresh():
    schedule = ESSSchedule(ConstantSchedule(0.2))
    assert schedule(Moments(4, 1.0, 2.0), 0) == 0.2
    assert schedule(Moments(4, 1.0, 2.0, fresh=0.25), 1) == pytest.approx(0.1)


def test_what_is_inside_is_resumed_and_needs_what_it_needs():
    def make():
        return ESSSchedule(SNRSchedule(0.1, "ema"))

    steps = [Moments(4, 1.0 + t, 9.0, fresh=0.5) for t in range(4)]
    whole, first, second = make(), make(), make()
    expected = [whole(moments, t) for t, moments in enumerate(steps)]
    for t in range(2):
        first(steps[t], t)
    second.load_state_dict(first.state_dict())
    assert [second(steps[t], t) for t in (2, 3)] == expected[2:]
    assert make().needs_noise
    assert not ESSSchedule(ConstantSchedule(0.1)).needs_noise


@pytest.mark.parametrize("live", [True, False])
def test_a_step_tells_it_how_fresh_its_rollouts_are(tmp_path, live):
    """By the ratios of the responses that have a gradient; where none has, nothing is known of them."""
    seen = []

    class Asked(Schedule):
        def __call__(self, moments, step):
            seen.append(moments.fresh)
            return 0.0

    batch = make_batch(tmp_path, True, drift=0.3, rewards=[1.0, 0.0] * 8 if live else [1.0] * 16)
    _, (statistics,) = take_steps(tmp_path, batch, schedule=Asked(), bound=10.0)
    expected = statistics.effective_sample_size if live else 1.0
    assert seen == [expected]
    assert (seen[0] < 0.9) is live
    assert math.isfinite(seen[0])
