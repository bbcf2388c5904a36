"""The bound that the schedule minimises, along real trajectories; and how good each estimate of the SNR is."""

import math

import pytest
import torch
from theory.laboratory import Laboratory

from oblr.schedules.decay import InverseSquareRootSchedule
from oblr.schedules.snr import SNREstimates, shrinkage
from oblr.types import Moments


def with_optimal_baseline(lab):
    """Rewards are told apart by their prompt; the optimal baseline does not depend on the responses."""

    def advantages(rewards, *_):
        prompts = [next(q for q, own in enumerate(lab.rewards.tolist()) if row[0] in own) for row in rewards.tolist()]
        return rewards - lab.optimal_baseline[prompts][:, None]

    return advantages


def smoothness(lab):
    """``B_R·L + B_R²·M``: ``‖∇² log π‖ ≤ L`` and ``‖∇ log π‖² ≤ M``, from the features."""
    longest = lab.features.norm(dim=-1).max().item()
    return longest**2 + (2 * longest) ** 2


def bound_of_a_step(lab, eta, noise, n_groups):
    """What Theorem 3 adds to the loss: ``−η‖∇L‖² + (B_R L + B_R² M)/2 · η² (‖∇L‖² + tr H/N)``."""
    square = lab.gradient.square().sum().item()
    return -eta * square + smoothness(lab) / 2 * eta**2 * (square + noise / n_groups)


def test_theorem_4_the_rate_minimises_the_bound():
    lab, n_groups = Laboratory(), 4
    _, noise = lab.moments(with_optimal_baseline(lab), group_size=2)
    snr = lab.gradient.square().sum().item() / noise
    eta = shrinkage(n_groups * snr) / smoothness(lab)
    least = bound_of_a_step(lab, eta, noise, n_groups)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2):
        assert bound_of_a_step(lab, factor * eta, noise, n_groups) > least


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_theorem_3_the_bound_holds_along_a_trajectory(seed, record_property):
    """Of each step, in expectation over what it can sample: exact, by enumeration."""
    lab, n_groups, group_size = Laboratory(responses=2, seed=seed), 2, 2
    generator = torch.Generator().manual_seed(seed)
    gaps = []
    for _ in range(10):
        _, noise = lab.moments(with_optimal_baseline(lab), 1, group_size)
        snr = lab.gradient.square().sum().item() / noise
        eta = shrinkage(n_groups * snr) / smoothness(lab)
        expected = 0.0
        for chance, prompts, responses in lab.steps(n_groups, group_size):
            step = lab.group_gradients(prompts, responses, with_optimal_baseline(lab)).mean(0)
            expected += chance * -lab.objective(lab.theta + eta * step).item()
        change = expected + lab.objective(lab.theta).item()
        bound = bound_of_a_step(lab, eta, noise, n_groups)
        assert change <= bound < 0
        gaps.append(change / bound)
        step = lab.group_gradients(*lab.sample(n_groups, group_size, generator), with_optimal_baseline(lab)).mean(0)
        lab.theta = lab.theta + eta * step
    record_property("progress over the bound's", sum(gaps) / len(gaps))
    assert min(gaps) > 1  # the bound is no better than what happens


def test_theorem_6_the_average_gradient_falls_as_one_over_the_root_of_t():
    """``(1/T) Σ_t ‖∇J(θ_t)‖²`` over T with ``η_t ∝ 1/√t`` falls at least like T to the power of −1/2."""
    averages = {}
    for length in (64, 256, 1024):
        schedule, squares = InverseSquareRootSchedule(lr=5.0, steps=length), []
        for seed in range(4):
            lab, generator = Laboratory(), torch.Generator().manual_seed(seed)
            for t in range(length):
                squares.append(lab.gradient.square().sum().item())
                rate = schedule(Moments(1, 0.0, 0.0), t)
                prompts, responses = lab.sample(2, 2, generator)
                lab.theta = lab.theta + rate * lab.group_gradients(prompts, responses, with_optimal_baseline(lab)).mean(
                    0
                )
        averages[length] = sum(squares) / len(squares)
    slope = math.log(averages[1024] / averages[64]) / math.log(1024 / 64)
    assert slope < -0.5


@pytest.mark.parametrize("n_groups", [4, 16, 64, 256, 1024])
def test_bias_and_spread_of_the_estimates_of_the_signal(n_groups, record_property):
    """The plug-in signal is too large by ``tr H/N``; the debiased one, before its max, is right on average."""
    lab, generator = Laboratory(), torch.Generator().manual_seed(n_groups)
    _, noise = lab.moments(with_optimal_baseline(lab), group_size=2)
    signal = lab.gradient.square().sum().item()
    draws = []
    for _ in range(400):
        groups = lab.group_gradients(*lab.sample(n_groups, 2, generator), with_optimal_baseline(lab))
        moments = Moments(n_groups, groups.mean(0).square().sum().item(), groups.square().sum(1).mean().item())
        draws.append([moments.mean_square, moments.mean_square - moments.noise / n_groups, moments.noise])
    mean, spread = torch.tensor(draws).double().mean(0), torch.tensor(draws).double().std(0)
    error = spread / len(draws) ** 0.5
    assert abs(mean[0] - (signal + noise / n_groups)) < 4 * error[0]
    assert abs(mean[1] - signal) < 4 * error[1]
    assert abs(mean[2] - noise) < 4 * error[2]
    record_property("relative spread of the debiased signal", (spread[1] / signal).item())


def test_the_moving_average_is_right_where_single_steps_are_not():
    lab = Laboratory(prompts=6, responses=2, size=1)  # prompts that pull against each other
    generator, n_groups = torch.Generator().manual_seed(0), 4
    lab.theta = torch.ones(1, dtype=torch.float64)
    _, noise = lab.moments(with_optimal_baseline(lab), group_size=2)
    exact = lab.gradient.square().sum().item() / noise
    estimates, steps = SNREstimates(decay=0.9995), []
    for _ in range(4000):
        groups = lab.group_gradients(*lab.sample(n_groups, 2, generator), with_optimal_baseline(lab))
        steps.append(
            estimates.update(
                Moments(n_groups, groups.mean(0).square().sum().item(), groups.square().sum(1).mean().item())
            )
        )
    assert n_groups * exact < 0.5
    assert steps[-1]["ema"] == pytest.approx(exact, rel=0.3)
    assert sorted(step["plug_in"] for step in steps)[len(steps) // 2] > 2 * exact
