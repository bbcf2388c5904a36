"""The product of successive gradients tells how far beyond a single step's best rate a run goes."""

import math

import numpy as np
import pytest
from contest import Runs
from measured import results
from overshoot import beyond, figure, figures, slopes
from pages import page
from results import CONTEST
from training import TASKS, Record

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


def test_how_far_steps_go_is_as_measured():
    findings = page("docs/findings.md")
    cells, value = {}, {}
    for name, found in results("overshoot").items():
        kind, phase = name.rsplit(": ", 1)
        ends = f" [{found['low']:.1f}, {found['high']:.1f}]" if "low" in found else ""
        cells.setdefault(kind, []).append(f"{found['value']:.1f}{ends}")
        task, steps, _, schedule, eta0 = kind.split(", ")
        if steps == "100 steps":
            twice = schedule == "constant" and not ends
            value.setdefault((schedule + twice * ", twice", phase), {})[task] = found["value"]
    section = findings.split("## How far steps go\n")[1].split("\n## ")[0]
    kinds = [kind for kind in cells if ", 100 steps, " in kind]
    assert len(kinds) == section.count("\n| pocket") == 16
    for kind in kinds:
        task, _, _, schedule, eta0 = kind.split(", ")
        assert "| " + " | ".join([task, schedule, eta0.removeprefix("η₀ = "), *cells[kind]]) + " |" in section
    first, half, second = (f"{phase} % of the steps" for phase in ("0 to 10", "20 to 50", "50 to 100"))

    def over(schedule, phase, *without):
        found = sorted(of for task, of in value[schedule, phase].items() if task not in without)
        return f"{found[0]:.1f} to {found[-1]:.1f}"

    section, rare = " ".join(section.split()), "pocket_rare"
    assert f"it is {over('constant', second, rare)} times the best" in section
    assert f"too short, {over('constant', first, rare)} times" in section
    left = [f"{r * (2 - r):.1f}" for r in map(float, over("constant", second, rare).split(" to "))]
    gain = "gain {} to {} of what the best".format(*left)
    assert f"{gain} one would." in section
    twice = over("constant, twice", first, rare)
    assert f"{twice} times, where the tuned one is at {over('constant', first, rare)}:" in section
    assert f"**The default is at {over('noise_linear', second)} over the second half**" in section
    assert f"Over its first tenth it is at {over('noise_linear', first)}." in section
    assert all(
        of > 1
        for (schedule, phase), tasks in value.items()
        for task, of in tasks.items()
        if phase in (half, second) and task != rare
    )
    log = findings.split("## Log")[1]
    assert f"is {twice} times the best of a single step from the first tenth" in log
    assert f"it ends at {over('constant', second, rare)}, where steps {gain} would" in log


def test_the_committed_figures_are_those_of_the_committed_runs():
    """As far as float32 keeps squares of gradients, which the figures were computed from."""
    found = {figure.name: figure for figure in figures(TASKS, Runs(CONTEST, makes=False))}
    committed = results("overshoot")
    assert found.keys() == committed.keys()
    for name, ours in found.items():
        for end in ("value", "low", "high"):
            assert getattr(ours, end, None) == pytest.approx(committed[name].get(end), rel=1e-5), (name, end)
