"""What two sizes of batch say of signal and noise, against moments and against the truth."""

import math

import pytest
import torch
from estimators import two_batch

from oblr.batch.types import Moments

DIMENSIONS = 10


def drawn(signal: float, n_groups: int, steps: int) -> torch.Tensor:
    """Gradients of groups [steps, N, D] around a mean of that square, each dimension's noise 1."""
    generator = torch.Generator().manual_seed(n_groups)
    noise = torch.randn(steps, n_groups, DIMENSIONS, generator=generator, dtype=torch.float64)
    return noise + math.sqrt(signal / DIMENSIONS)


def by_halves(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Signal and noise of each step, [steps] both."""
    steps, n_groups, _ = groups.shape
    halves = groups.view(steps, 2, n_groups // 2, -1).mean(2).square().sum(2).mean(1)
    pairs = [
        two_batch(half, n_groups // 2, whole, n_groups) for half, whole in zip(halves, square(groups), strict=True)
    ]
    signal, noise = zip(*pairs, strict=True)
    return torch.stack(signal), torch.stack(noise)


def square(groups: torch.Tensor) -> torch.Tensor:
    """``‖ĝ‖²`` of each step."""
    return groups.mean(1).square().sum(1)


def test_batches_of_single_groups_are_the_moments():
    (groups,) = drawn(10, 8, steps=1)
    moments = Moments(8, groups.mean(0).square().sum().item(), groups.square().sum(1).mean().item())
    signal, noise = two_batch(moments.square_mean, 1, moments.mean_square, 8)
    assert noise == pytest.approx(moments.noise, rel=1e-12)
    assert signal == pytest.approx(moments.mean_square - moments.noise / 8, rel=1e-12)


def test_two_halves_are_their_product_and_their_difference():
    halves = torch.randn(2, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    signal, noise = two_batch(halves.square().sum(1).mean().item(), 4, halves.mean(0).square().sum().item(), 8)
    assert signal == pytest.approx((halves[0] @ halves[1]).item(), rel=1e-12)
    assert noise == pytest.approx(8 / 4 * (halves[0] - halves[1]).square().sum().item(), rel=1e-12)


@pytest.mark.parametrize("n_groups", [4, 64])
def test_both_are_right_on_average(n_groups):
    for found, truth in zip(by_halves(drawn(2.0, n_groups, steps=2000)), (2.0, DIMENSIONS), strict=True):
        assert abs(found.mean() - truth) < 4 * found.std() / len(found) ** 0.5


def test_two_halves_know_the_noise_no_better_as_the_batch_grows():
    """Its spread is that of a single difference, ``√(2/D)``."""
    for n_groups in (4, 64):
        _, noise = by_halves(drawn(0.0, n_groups, steps=2000))
        assert noise.std().item() / DIMENSIONS == pytest.approx(math.sqrt(2 / DIMENSIONS), rel=0.1)
