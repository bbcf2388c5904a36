"""The other computation shares no code with the table's, agrees with it, and would notice if it did not."""

import ast
import json
from pathlib import Path

import pytest
import recomputed
from measured import results
from recomputed import RESULTS, claims, counted, interval, measured, rows_of, table, with_second_rates


@pytest.fixture(scope="module")
def rows():
    return with_second_rates(rows_of("contest.parquet"))


def test_nothing_of_the_tables_code_is_used():
    tree = ast.parse(Path(recomputed.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported & {"along", "comparisons", "contest", "curves", "kept", "results", "training"} == set()
    assert not any(name.startswith("oblr") for name in imported if name)


def test_the_table_and_what_pages_claim_of_it_agree_with_the_runs(rows):
    committed = results("recomputed")
    for ours in (*table(rows), *claims(rows)):
        theirs = committed[ours.name]
        assert ours.holds is theirs["holds"] is not False, ours.name
        if "largest difference" not in ours.name:  # rounding
            assert ours.value == pytest.approx(theirs["value"], rel=1e-9)


def test_a_figure_that_is_off_is_noticed(rows, tmp_path, monkeypatch):
    result = json.loads((RESULTS / "contest.json").read_text())
    found = {figure["name"]: figure for figure in result["figures"]}
    found["all tasks, 300 steps, gradient_weighted, noise_linear: late reward, over cosine's"]["low"] += 0.01
    found["pocket, 100 steps, rloo, constant: η₀"]["value"] *= 2
    (tmp_path / "contest.json").write_text(json.dumps(result))
    monkeypatch.setattr(recomputed, "RESULTS", tmp_path)
    difference, rates = (figure for figure in table(rows) if figure.holds is not None)
    assert not difference.holds
    assert difference.value == pytest.approx(0.01)
    assert not rates.holds


def test_a_claim_that_the_runs_do_not_bear_is_noticed(rows, monkeypatch):
    row, rival = "pocket, 25 steps, gradient_weighted, constant", "RLOO's"
    monkeypatch.setattr(recomputed, "CLAIMS", ((row, rival, "area", "+"), (row, rival, "area", "=")))
    ahead, tied, *_ = claims(rows)
    assert (ahead.holds, tied.holds) == (False, True)


def test_measures_and_intervals_by_hand():
    run = {"reward": [0, 0, 0, 0.5, 1], "tokens": [1, 1, 1, 1, 4], "accuracy": {"10": 0.5, "0": 0.1, "5": 0.75}}
    found = {name: measured(run, name) for name in ("late reward", "area", "area per token")}
    assert found == {"late reward": 100, "area": 30, "area per token": 100 * 4.5 / 8}
    assert measured(run, "final accuracy") == 50
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))


def test_runs_are_found_by_row_rate_and_seed(rows):
    row = rows["pocket, 25 steps, gradient_weighted, noise_linear, N = 4, G = 8"]
    assert {*counted(row)} == {1, 2, 3, 4, 5}
    assert {*row[0.015]} == {1, 2, 3, 4, 5, 101, 102}
    assert len(row[0.015][1]["reward"]) == 100
