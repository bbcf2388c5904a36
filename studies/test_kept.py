"""Runs that are added lie beside the table until they are folded into it; nothing of them is lost on the way."""

import math

import numpy as np
import pytest
from kept import ROUNDED, add, fold, lines_of, read


def run(seed: int, steps: int = 3) -> dict:
    numbers = np.random.default_rng(seed).normal(size=(len(ROUNDED), steps))
    record = {
        "accuracy": {"0": 0.1, str(steps): seed / 7},
        "reward": [step / 128 for step in range(steps)],
        **dict(zip(ROUNDED, numbers.tolist(), strict=True)),
        "tokens": list(range(steps)),
        **{"rollout_seconds": 1 / 3, "update_seconds": 2 / 3, "threads": 2, "second_moment": 1e7 / 3, "rloo": 1e7 / 7},
    }
    record["alignment"][0] = math.nan
    return {"task": "pocket", "overrides": ["baseline=rloo", f"seed={seed}"], "revision": "abc", "record": record}


def is_kept(found: dict, given: dict) -> bool:
    """All of it as it was, but for what is rounded."""
    records = {**found["record"]}, {**given["record"]}
    near = [
        np.allclose(*(record.pop(name) for record in records), 2.0 ** -(digits + 1), 0, True)
        for name, digits in ROUNDED.items()
    ]
    return (
        all(near) and records[0] == records[1] and all(found[name] == given[name] for name in given.keys() - {"record"})
    )


def test_added_runs_are_read_before_and_after_they_are_folded(tmp_path):
    table = tmp_path / "runs.parquet"
    assert list(read(table)) == []
    for seed in (1, 2):
        add(table, run(seed))
    fold(table)
    assert [path.name for path in tmp_path.iterdir()] == ["runs.parquet"]
    add(table, run(3, steps=5))
    for _ in range(2):
        found = list(read(table))
        assert len(found) == 3
        assert all(is_kept(*pair) for pair in zip(found, (run(1), run(2), run(3, steps=5)), strict=True))
        fold(table)
    assert not lines_of(table).exists()


def test_a_run_without_a_number_that_a_table_has_is_read_without_it(tmp_path):
    """As runs of an earlier edition are."""
    table, older = tmp_path / "runs.parquet", run(1)
    del older["record"]["threads"]
    add(table, older)
    fold(table)
    (found,) = read(table)
    assert is_kept(found, older)


def test_what_is_unused_is_left_out_of_those_runs_alone(tmp_path):
    table = tmp_path / "runs.parquet"
    for seed in (1, 2):
        add(table, run(seed))
    for _ in range(2):
        fold(table, lambda one: ("lr", "alignment") if one["overrides"][1] == "seed=1" else ())
        first, second = read(table)
        assert is_kept(second, run(2))
        assert run(1)["record"].keys() - first["record"].keys() == {"lr", "alignment"}


def test_a_run_with_a_number_that_a_table_has_not_is_refused(tmp_path):
    """It stays beside the table, as it was."""
    table, newer = tmp_path / "runs.parquet", run(1)
    newer["record"]["energy"] = 1.0
    add(table, newer)
    with pytest.raises(ValueError, match="energy"):
        fold(table)
    assert next(read(table))["record"]["energy"] == 1.0
