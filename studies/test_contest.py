"""The table of what helps is that of the committed runs, and a case counts only when all of its own are there."""

import math
from collections import defaultdict
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from contest import GROUP, Case, MissingRunError, Row, Runs
from kept import add, read
from measured import results
from pretrained import RUNS as PRETRAINED
from results import (
    CLAIMS,
    CONTEST,
    DEFAULT,
    DRAWN,
    FIVE,
    PARTS,
    RIVAL,
    TEN,
    complete,
    kept_figures,
    of_like_machines,
    part_figures,
    picture,
    points_behind,
    raced,
)
from training import Record


def written(path, runs):
    """A table that has nothing yet, with runs beside it."""
    for run in runs:
        add(path, run)
    return path


def test_the_committed_table_is_that_of_the_committed_runs():
    committed = results("contest")
    found = [asdict(figure) for figure in kept_figures(Runs(CONTEST, makes=False))]
    assert [figure["name"] for figure in found] == list(committed)
    for ours, theirs in zip(found, committed.values(), strict=True):
        for name in ("value", "low", "high"):
            assert ours.get(name) == pytest.approx(theirs.get(name), rel=1e-9), (ours["name"], name)


def test_rewards_of_kept_runs_are_counts_of_as_many_responses_as_their_overrides_say():
    """Where answers are right or wrong: a multiple of 1/(N·G), and over all runs of that size of no larger part."""
    divisors = defaultdict(int)
    for run in (run for table in (CONTEST, PRETRAINED) for run in read(table)):
        given = dict(override.split("=", 1) for override in run["overrides"])
        size = int(given["rollout.prompts_per_step"]) * int(given.get("rollout.group_size", GROUP))
        if run["task"] not in ("pocket_graded", "rotated"):
            counts = np.array(run["record"]["reward"]) * size
            assert counts == pytest.approx(counts.round(), abs=1e-3)
            divisors[run["task"], size] = math.gcd(divisors[run["task"], size], *counts.round().astype(int).tolist())
    assert set(divisors.values()) == {1}
    assert ("smollm2_cpu", 32) in divisors


def test_a_run_whose_groups_are_not_the_rows_is_not_made(tmp_path):
    case = Case("smollm2_cpu", Row("rloo", ("baseline=rloo",), None, 8), 15)
    with pytest.raises(ValueError, match="groups of 4, and the row says 8"):
        Runs(tmp_path / "runs.parquet").of(case, (1,))


def test_rates_lie_inside_their_range_and_no_run_is_both_tuned_on_and_counted():
    runs = Runs(CONTEST, makes=False)
    for row in CLAIMS:
        case = Case("pocket_rare", row, 100)
        rate = runs.tuned(case)
        assert all(runs(case, beside, runs.tuning_seeds[0]) for beside in (rate / 2, rate * 2))
    assert not set(runs.tuning_seeds) & set(TEN)


def test_a_task_with_a_run_missing_is_not_there(tmp_path):
    part = PARTS[0]
    runs = Runs(CONTEST, makes=False)
    assert complete(part, "pocket", runs)
    case = Case("pocket", RIVAL, 100)
    third = list(case.overrides(runs.tuned(case), seed=3))
    everything = list(read(CONTEST))
    less = [run for run in everything if (run["task"], run["overrides"]) != ("pocket", third)]
    assert len(less) == len(everything) - 1
    runs = Runs(written(tmp_path / "less.parquet", less), makes=False)
    assert not complete(part, "pocket", runs)
    with pytest.raises(MissingRunError, match="seed=3"):
        runs.of(case, FIVE)


def test_a_row_that_the_tuning_leaves_far_behind_goes_no_further(tmp_path):
    """The default's runs under another name: lowered until they are six points behind they are out, at four not."""
    other = Row("other", ("baseline=gradient_weighted", "schedule=other"), DEFAULT.rate)
    case = Case("pocket", other, 100)

    def runs_less(points, schedule="other"):
        of_default = [run for run in kept() if "schedule=noise_linear" in run["overrides"]]
        for run in of_default:
            run["overrides"] = [of.replace("=noise_linear", f"={schedule}") for of in run["overrides"]]
            run["record"]["reward"] = [reward - points / 100 for reward in run["record"]["reward"]]
        return Runs(written(tmp_path / f"{schedule}{points}.parquet", [*kept(), *of_default]), makes=False)

    def kept():
        return [run for run in read(CONTEST) if run["task"] == "pocket" and "steps=100" in run["overrides"]]

    ahead = -points_behind(case, runs_less(0))
    assert raced(case, FIVE, runs_less(ahead + 4)) == runs_less(ahead + 4).of(case, FIVE)
    assert raced(case, FIVE, runs_less(ahead + 6)) == []
    part = replace(PARTS[0], rows=(RIVAL, other), tasks=("pocket",))
    figures = {figure.name: figure for figure in part_figures(part, runs_less(ahead + 6))}
    assert figures[f"{case.name}: dropped, behind the constant rate by"].value == pytest.approx(6)
    assert not any(name.startswith("all tasks") and other.name in name for name in figures)
    claimed = runs_less(50, "noise_linear")
    assert raced(replace(case, row=DEFAULT), FIVE, claimed) == claimed.of(replace(case, row=DEFAULT), FIVE)


@pytest.mark.parametrize(
    ("seconds", "tokens", "threads", "alike"),
    [(100, 1000, 1, True), (82, 1000, 1, True), (200, 2000, 1, True), (50, 1000, 1, False), (100, 1000, 2, False)],
)
def test_costs_are_compared_where_machines_are_as_fast(seconds, tokens, threads, alike):
    other = Record(tokens=[400, 600], rollout_seconds=100.0, threads=1)
    assert of_like_machines(Record(tokens=[tokens], rollout_seconds=seconds, threads=threads), other) == alike


def test_shares_know_of_each_others_runs(tmp_path):
    """A run that another process has kept since is not made again."""
    path = tmp_path / "runs.parquet"
    runs = Runs(path, makes=False)
    case = Case("pocket", RIVAL, 100)
    with pytest.raises(MissingRunError):
        runs(case, 0.01, 1)
    written(path, read(CONTEST))
    assert runs(case, 0.01, 1).reward == Runs(CONTEST, makes=False)(case, 0.01, 1).reward


@pytest.mark.parametrize("part", [part for part in PARTS if part.name in DRAWN], ids=lambda part: part.name)
def test_the_claims_are_drawn_whichever_of_them_a_part_has(part, tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr("results.ROOT", tmp_path)
    record = Record(reward=[0.5] * part.horizon, lr=[0.01] * part.horizon)
    picture(part, SimpleNamespace(of=lambda case, seeds: [record for _ in seeds]))
    assert (tmp_path / "docs" / f"contest-{part.horizon}.png").stat().st_size > 10_000
