"""The product of successive gradients tells how far beyond a single step's best rate a run goes."""

import math

import numpy as np
import pytest
from overshoot import beyond, figure, slopes
from training import Record

N = 16
CURVATURES = np.array([1.0, 0.3, 0.1])


def run(rate, start, noise, n_steps, seed=0):
    """Ascent on ``−½ Σ h θ²`` by means of N noisy gradients."""
    random, theta, last = np.random.default_rng(seed), np.array(start, dtype=float), None
    record = Record(reward=[0.0] * n_steps)
    for _ in range(n_steps):
        groups = -CURVATURES * theta + noise * random.standard_normal((N, 3))
        gradient = groups.mean(0)
        record.alignment.append(math.nan if last is None else gradient @ last)
        record.mean_square.append(gradient @ gradient)
        record.square_mean.append((groups**2).sum(1).mean())
        last, theta = gradient, theta + rate * gradient
    return record


def test_without_noise_it_is_the_rate_times_the_curvature():
    at_end, at_start = slopes(run(0.4, (3, 0, 0), 0.0, 5), (0, 0.4))
    assert beyond(np.array([at_end, at_start])) == pytest.approx(0.4 * CURVATURES[0])


def test_with_noise_it_is_the_rate_over_the_best_one():
    """From one point: the best rate is ``‖∇J‖²/E ĝᵀHĝ``, which counts what noise adds to a step's length."""
    start, noise, rate = np.array((1.0, 1.0, 1.0)), 2.0, 0.5
    slope, variance = -CURVATURES * start, noise**2 / N
    best = slope @ slope / (CURVATURES @ (slope**2 + variance))
    runs = [run(rate, start, noise, 2, seed) for seed in range(1500)]
    found = figure("", runs, (0, 0.5))
    assert found.low < rate / best < found.high
    assert found.high - found.low < 0.15


def test_a_run_that_gains_nothing_more_is_at_two():
    settled = [run(0.5, (0, 0, 0), 2.0, 4000, seed) for seed in range(5)]
    found = figure("", settled, (0.2, 1))
    assert found.value == pytest.approx(2, abs=0.2)
    slower = figure("", [run(0.02, (30, 30, 30), 2.0, 50, seed) for seed in range(5)], (0, 1))
    assert slower.high < 0.15


def test_a_step_after_which_all_groups_agree_counts_and_a_rate_of_zero_does_not():
    record = run(0.4, (3, 0, 0), 0.0, 4)
    record.alignment[2] = math.nan  # a rate of zero
    record.alignment[3], record.mean_square[3] = math.nan, 0.0
    at_end, at_start = slopes(record, (0, 1))
    assert at_end == record.alignment[1]
    assert at_start == pytest.approx(record.mean_square[0] + record.mean_square[2])
