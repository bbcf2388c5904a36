"""The bound that the schedule minimises; and how good each estimate of the SNR is."""

import itertools
import math
from collections import defaultdict
from functools import cache

import pytest
import torch
from bound import bound_of_a_step, smoothness
from laboratory import Laboratory

from oblr.batch.types import Moments
from oblr.schedules.snr import SNREstimates, shrinkage


def test_theorem_4_the_rate_minimises_the_bound():
    lab, n_groups = Laboratory(), 4
    _, noise = lab.moments(lab.constant(lab.optimal_baseline), group_size=2)
    snr = lab.gradient.square().sum().item() / noise
    eta = shrinkage(n_groups * snr) / smoothness(lab)
    least = bound_of_a_step(lab, eta, noise, n_groups)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2):
        assert bound_of_a_step(lab, factor * eta, noise, n_groups) > least


SIZES = (4, 16, 64, 256, 1024)


@cache
def estimates(n_groups, steps=1000):
    """``‖∇J‖²``, ``tr H``, and what each of many steps of the laboratory says of them, by name of the estimate."""
    lab, generator = Laboratory(prompts=4, size=8), torch.Generator().manual_seed(n_groups)
    advantages = lab.constant(lab.optimal_baseline)
    _, noise = lab.moments(advantages, group_size=2)
    groups = lab.group_gradients(*lab.sample(n_groups * steps, 2, generator), advantages).view(steps, n_groups, -1)
    squares = groups.mean(1).square().sum(1), groups.square().sum(2).mean(1)
    smoothed, found = SNREstimates(decay=0.9), defaultdict(list)
    for mean_square, square_mean in zip(*(x.tolist() for x in squares), strict=True):
        moments = Moments(n_groups, mean_square, square_mean)
        found["signal, plug_in"].append(mean_square)
        found["signal, debiased"].append(mean_square - moments.noise / n_groups)
        found["noise"].append(moments.noise)
        for name, snr in smoothed.update(moments).items():
            found[name].append(snr)
    draws = {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}
    draws["ema"] = draws["ema"][50:]
    return lab.gradient.square().sum().item(), noise, draws


def half_range(values):
    """Half the distance between the quantiles that are a standard deviation off in a Gaussian."""
    return ((values.quantile(0.841) - values.quantile(0.159)) / 2).item()


@pytest.mark.parametrize("n_groups", SIZES)
def test_bias_of_the_estimates_of_signal_and_noise(n_groups):
    """The plug-in signal is too large by ``tr H/N``; the others, before their max, are right on average."""
    signal, noise, draws = estimates(n_groups)
    expected = {
        "signal, plug_in": signal + noise / n_groups,
        "signal, debiased": signal,
        "noise": noise,
    }
    for name, value in expected.items():
        assert abs(draws[name].mean() - value) < 4 * draws[name].std() / len(draws[name]) ** 0.5, name


@pytest.mark.parametrize("n_groups", SIZES)
def test_bias_of_the_estimates_of_the_snr(n_groups):
    signal, noise, draws = estimates(n_groups)
    raw = draws["signal, debiased"] / draws["noise"]
    defined = draws["noise"] > 0
    torch.testing.assert_close((draws["plug_in"] - raw)[defined], torch.full_like(raw, 1 / n_groups)[defined])
    assert (draws["debiased"] >= raw)[defined].all()  # the max is all that biases it upwards
    assert draws["ema"].mean().item() == pytest.approx(signal / noise, rel=0.05)


def test_bias_of_the_factor_where_the_signal_is_weak():
    """At N = 4, ``N·SNR`` is 0.77: the truth is 0.44, the plug-in factor above 1/2 all the same."""
    signal, noise, draws = estimates(4)
    truth = shrinkage(4 * signal / noise)
    factors = {name: [shrinkage(4 * snr) for snr in draws[name].tolist()] for name in ("plug_in", "debiased", "ema")}
    means = {name: sum(values) / len(values) for name, values in factors.items()}
    assert means["plug_in"] > 0.5 > truth + 0.05
    assert means["debiased"] < truth  # zero at many steps
    assert abs(means["ema"] - truth) < 0.5 * abs(means["debiased"] - truth)


def test_spread_of_the_estimates_of_the_snr():
    """Falls about as ``1/√N``, and by averaging over ``(1 + 0.9)/(1 − 0.9) = 19`` steps."""
    spread = {name: [half_range(estimates(n)[2][name]) for n in SIZES] for name in ("plug_in", "debiased", "ema")}
    for name in ("plug_in", "debiased", "ema"):
        assert all(small > 1.5 * large for small, large in itertools.pairwise(spread[name])), name
        assert math.log(spread[name][0] / spread[name][-1]) / math.log(SIZES[-1] / SIZES[0]) > 0.45, name
    for steps, averaged in zip(spread["debiased"][1:], spread["ema"][1:], strict=True):
        assert steps / averaged == pytest.approx(19**0.5, rel=0.25)


def test_the_moving_average_is_right_where_single_steps_are_not():
    lab = Laboratory(prompts=6, responses=2, size=1)  # prompts that pull against each other
    generator, n_groups = torch.Generator().manual_seed(0), 4
    lab.theta = torch.ones(1, dtype=torch.float64)
    _, noise = lab.moments(lab.constant(lab.optimal_baseline), group_size=2)
    exact = lab.gradient.square().sum().item() / noise
    estimates, steps = SNREstimates(decay=0.9995), []
    for _ in range(4000):
        groups = lab.group_gradients(*lab.sample(n_groups, 2, generator), lab.constant(lab.optimal_baseline))
        steps.append(
            estimates.update(
                Moments(n_groups, groups.mean(0).square().sum().item(), groups.square().sum(1).mean().item())
            )
        )
    assert n_groups * exact < 0.5
    assert steps[-1]["ema"] == pytest.approx(exact, rel=0.3)
    assert sorted(step["plug_in"] for step in steps)[len(steps) // 2] > 2 * exact
