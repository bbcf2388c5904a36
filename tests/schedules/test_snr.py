import pytest
import torch

from oblr.batch.types import Moments
from oblr.errors import SettingError
from oblr.schedules.constant import ConstantSchedule
from oblr.schedules.snr import SNREstimates, SNRSchedule


def sample_moments(mean: torch.Tensor, n: int, generator: torch.Generator) -> Moments:
    """Moments of N group gradients with mean ``mean`` and identity covariance."""
    g = mean + torch.randn(n, len(mean), generator=generator, dtype=torch.float64)
    return Moments(n, g.mean(0).square().sum().item(), g.square().sum(1).mean().item())


@pytest.mark.parametrize("signal", [0.0, 2.0])
def test_noise_and_signal_are_unbiased_and_the_plug_in_is_not(signal):
    dim, n, generator = 10, 8, torch.Generator().manual_seed(0)
    mean = torch.full((dim,), (signal / dim) ** 0.5, dtype=torch.float64)
    draws = [sample_moments(mean, n, generator) for _ in range(4000)]
    noise = torch.tensor([m.noise for m in draws])
    raw_signal = torch.tensor([m.mean_square - m.noise / n for m in draws])
    assert noise.mean().item() == pytest.approx(dim, rel=0.02)
    assert raw_signal.mean().item() == pytest.approx(signal, abs=0.05)
    assert torch.tensor([m.mean_square for m in draws]).mean().item() == pytest.approx(signal + dim / n, rel=0.05)


def test_rate_follows_the_formula():
    moments = Moments(n_groups=16, mean_square=3.0, square_mean=10.0)
    noise = 16 / 15 * 7
    assert moments.noise_scale == pytest.approx(noise / (3 - noise / 16))
    for estimator, snr in (("plug_in", 3 / noise), ("debiased", (3 - noise / 16) / noise)):
        lr = SNRSchedule(eta0=0.1, estimator=estimator)(moments, 0)
        assert lr == pytest.approx(0.1 * 16 * snr / (1 + 16 * snr))
        assert lr == pytest.approx(0.1 / (1 + (1 / snr) / 16))  # η₀/(1 + B_noise/N)


def test_plug_in_factor_stays_near_one_half_without_any_signal():
    generator = torch.Generator().manual_seed(0)
    factors = {"plug_in": [], "debiased": [], "ema": []}
    schedules = {name: SNRSchedule(1.0, name) for name in factors}
    for step in range(300):
        moments = sample_moments(torch.zeros(1000, dtype=torch.float64), 16, generator)
        for name, schedule in schedules.items():
            factors[name].append(schedule(moments, step))
    means = {name: sum(values) / len(values) for name, values in factors.items()}
    assert 0.45 < means["plug_in"] < 0.55
    assert means["debiased"] < 0.05
    assert means["ema"] < means["debiased"]


def test_ema_divides_after_averaging_and_is_corrected_for_its_start():
    schedule = SNRSchedule(1.0, "ema", decay=0.5)
    schedule(Moments(4, 1.0, 2.0), 0)
    lr = schedule(Moments(4, 3.0, 8.0), 1)
    m1, m2 = (0.25 * 1 + 0.5 * 3) / 0.75, (0.25 * 2 + 0.5 * 8) / 0.75
    noise = 4 / 3 * (m2 - m1)
    snr = (m1 - noise / 4) / noise
    assert lr == pytest.approx(4 * snr / (1 + 4 * snr))


def test_ema_lags():
    """Ten steps after N·SNR falls from 1 to 0.1 the estimate is ``0.1 + 0.9 · 0.9^10``."""
    estimates, n = SNREstimates(0.9), 8

    def expected(n_snr):  # the means of M1 and M2 with tr H = 1
        return Moments(n, (n_snr + 1) / n, n_snr / n + 1)

    for _ in range(400):
        estimates.update(expected(1.0))
    for _ in range(10):
        snr = estimates.update(expected(0.1))["ema"]
    assert n * snr == pytest.approx(0.1 + 0.9 * 0.9**10, rel=1e-9)


def test_state_survives_a_checkpoint():
    first = SNRSchedule(1.0)
    first(Moments(4, 1.0, 2.0), 0)
    second = SNRSchedule(1.0)
    second.load_state_dict(first.state_dict())
    assert first(Moments(4, 0.5, 3.0), 1) == second(Moments(4, 0.5, 3.0), 1)


def test_degenerate_moments():
    assert SNRSchedule(0.1, "plug_in")(Moments(4, 0.0, 0.0), 0) == 0.0  # no live group
    assert SNRSchedule(0.1, "debiased")(Moments(4, 2.0, 2.0), 0) == 0.1  # all groups agree
    assert Moments(4, 2.0, 2.0).noise_scale == 0.0
    assert Moments(4, 0.0, 3.0).noise_scale == float("inf")


def test_constant():
    assert ConstantSchedule(0.3)(Moments(1, 1.0, 1.0), 7) == 0.3


def test_bad_settings():
    with pytest.raises(SettingError, match=r"schedule\.estimator"):
        SNRSchedule(0.1, "best")
    with pytest.raises(SettingError, match=r"schedule\.decay"):
        SNRSchedule(0.1, decay=1.0)


def test_floor_and_warm_up():
    nothing = Moments(n_groups=16, mean_square=0.0, square_mean=10.0)
    schedule = SNRSchedule(0.5, "plug_in", floor=0.1, warm_up=4)
    assert [schedule(nothing, step) for step in range(6)] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05, 0.05])
    for settings in ({"floor": 1.5}, {"warm_up": -1}):
        with pytest.raises(SettingError, match=rf"^schedule\.{next(iter(settings))}: "):
            SNRSchedule(1.0, **settings)
