"""The product of successive gradients tells how far beyond a single step's best rate a run goes."""

import math

import numpy as np
import pytest
from contest import Runs
from measured import results
from overshoot import beyond, figure, figures, slopes
from results import CONTEST
from training import TASKS, Record

N, SCHEDULES = 16, ("constant", "cosine", "noise_linear")
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


def test_constant_rates_end_beyond_the_best_of_a_single_step_and_so_do_all_but_on_rare_answers():
    far = {}
    for name, found in results("overshoot").items():
        kind, phase = name.rsplit(": ", 1)
        task, steps, _, schedule, _ = kind.split(", ")
        if steps == "100 steps" and "low" in found:
            far[task, schedule, phase.removesuffix(" % of the steps")] = found["value"]
    assert len(far) == 4 * 3 * 4
    for task in set(TASKS) - {"pocket_rare"}:
        assert all(far[task, name, phase] > 1 for name in SCHEDULES for phase in ("20 to 50", "50 to 100"))
        assert far[task, "constant", "0 to 10"] < 1 < far[task, "noise_linear", "50 to 100"]
        assert far[task, "noise_linear", "50 to 100"] < far[task, "constant", "50 to 100"]


def test_twice_the_tuned_rate_is_beyond_the_best_from_the_first_tenth_on():
    """But for rare answers, where it comes later."""
    phase = "0 to 10 % of the steps"
    twice = {
        name.split(", ")[0]: found["value"]
        for name, found in results("overshoot").items()
        if name.endswith(phase) and ", 100 steps, " in name and "low" not in found
    }
    assert twice.keys() == set(TASKS)
    assert all(value > 1.5 for task, value in twice.items() if task != "pocket_rare")


def test_the_committed_figures_are_those_of_the_committed_runs():
    """To the digits that results have."""
    found = {figure.name: figure for figure in figures(TASKS, Runs(CONTEST, makes=False))}
    committed = results("overshoot")
    assert found.keys() == committed.keys()
    for name, ours in found.items():
        for end in ("value", "low", "high"):
            assert getattr(ours, end, None) == pytest.approx(committed[name].get(end), rel=1e-9), (name, end)
