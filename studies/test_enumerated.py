"""Several steps by enumeration, against the laboratory's one step and against differences."""

import pytest
import torch
from enumerated import Horizon, best_rates, constant, measured, theorem, tuned
from laboratory import Laboratory

from oblr.baselines.leave_one_out import leave_one_out_means


def horizon(seed=0):
    return Horizon(Laboratory(prompts=2, responses=2, size=3, seed=seed))


def test_a_step_is_the_laboratorys():
    """There, orders of responses and groups are told apart."""
    own, lab = horizon(), horizon().lab
    theta = lab.theta[None]
    mean, noise = lab.moments(lambda r, n, _: r - leave_one_out_means(r, n), n_groups=2, group_size=2)
    chances, gradients = own.outcomes(theta)
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(torch.einsum("ms,msd->md", chances, gradients)[0], mean, rtol=0, atol=1e-12)
    signal, square = own.moments(theta)
    assert signal.item() == pytest.approx(lab.gradient.square().sum().item(), rel=1e-9)
    assert square.item() == pytest.approx(signal.item() + noise / 2, rel=1e-9)


def test_curvature_is_what_a_short_step_loses():
    own = horizon(2)
    theta, rate = own.lab.theta[None], torch.tensor([1e-3], dtype=torch.float64)
    signal, _ = own.moments(theta)
    gained = own.after(theta, rate) - own.objective(theta)
    assert gained.item() == pytest.approx((rate * signal - rate**2 / 2 * own.curvature(theta)).item(), rel=1e-6)


def test_two_steps_are_all_pairs_of_steps():
    own, rates = horizon(), [1.5, 0.5]
    expected, theta = 0.0, own.lab.theta
    chances, gradients = own.outcomes(theta[None])
    for chance, gradient in zip(chances[0], gradients[0], strict=True):
        rate = torch.tensor([rates[1]], dtype=torch.float64)
        expected += chance * own.after((theta + rates[0] * gradient)[None], rate).item()
    assert own.run(constant(rates), 2) == pytest.approx(expected.item(), abs=1e-12)


def test_the_best_rates_are_best_and_beat_the_theorems_shape_over_two_steps():
    """Theorem 4's rate falls with the signal; the best ones do not."""
    own = horizon(2)
    rates = best_rates(own, 2, start=2.0)
    best = own.run(constant(rates), 2)
    for other in ([1.1, 1], [0.9, 1], [1, 1.1], [1, 0.9]):
        assert own.run(constant([a * b for a, b in zip(rates, other, strict=True)]), 2) < best
    assert rates[1] > rates[0]
    _, of_theorem = tuned(own, lambda eta0: theorem(own, eta0), 2)
    _, of_constant = tuned(own, lambda rate: constant([rate, rate]), 2)
    assert of_theorem < of_constant < best
    assert own.run(measured(own), 2) < of_constant
