"""The table of what helps is that of the committed runs, and a case counts only when all of its own are there."""

import json
from dataclasses import asdict

import pytest
from conftest import ROOT
from contest import Case, MissingRunError, Runs
from results import CLAIMS, CONTEST, FIVE, RIVAL, kept_figures


def test_the_committed_table_is_that_of_the_committed_runs():
    committed = json.loads((ROOT / "benchmarks" / "results" / "contest.json").read_text())["figures"]
    found = [asdict(figure) for figure in kept_figures()]
    assert [figure["name"] for figure in found] == [figure["name"] for figure in committed]
    for ours, theirs in zip(found, committed, strict=True):
        for name in ("value", "low", "high"):
            assert ours.get(name) == pytest.approx(theirs.get(name), rel=1e-9), (ours["name"], name)


def test_rates_lie_inside_their_range_and_no_run_is_both_tuned_on_and_counted():
    runs = Runs(CONTEST, makes=False)
    for row in CLAIMS:
        case = Case("pocket_rare", row, 100)
        rate = runs.tuned(case)
        assert all(runs(case, beside, runs.tuning_seeds[0]) for beside in (rate / 2, rate * 2))
    assert not set(runs.tuning_seeds) & set(FIVE)


def test_a_case_with_a_run_missing_is_not_there(tmp_path):
    lines = CONTEST.read_text().splitlines()
    case = Case("pocket", RIVAL, 100)
    assert Runs(CONTEST, makes=False).have(case, FIVE)
    ours = ["schedule=constant", "steps=100", "seed=3"]
    less = [
        line for line in lines if not (json.loads(line)["task"] == "pocket" and all(f'"{one}"' in line for one in ours))
    ]
    assert len(less) == len(lines) - 1
    (tmp_path / "less.jsonl").write_text("\n".join(less))
    runs = Runs(tmp_path / "less.jsonl", makes=False)
    assert not runs.have(case, FIVE)
    with pytest.raises(MissingRunError, match="seed=3"):
        runs.of(case, FIVE)
