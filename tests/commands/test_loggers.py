"""Runs with loggers that are not of our environment, into folders of this machine: what they have, read back."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, run_script

#: Where ``make test-loggers`` puts them.
PACKAGES = ROOT / ".cache" / "loggers"
HISTOGRAMS = ("gradnorm/per_sample", "train/advantages", "train/ratios")

pytestmark = pytest.mark.loggers


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The folder of a run of two steps with a logger."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(PACKAGES)))))
    monkeypatch.setenv("WANDB_MODE", "offline")

    def run(logger):
        given = (*SMALL, f"logger={logger}", "steps=2", f"paths.output_dir={tmp_path / 'run'}")
        result = run_script("train.py", *given, cold=True)
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "run" / "report.html").exists()
        return tmp_path / "run"

    return run


def metrics(folder):
    """Tag → its values by step, as the run folder has them."""
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        step = row.pop("step")
        for tag, value in row.items():
            found.setdefault(tag, {})[step] = value
    return found


def test_mlflow(ran, monkeypatch):
    folder = ran("mlflow")
    monkeypatch.setattr(sys, "path", [*sys.path, str(PACKAGES)])
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"file:{folder}/mlflow")
    (experiment,) = (one for one in client.search_experiments() if one.name != "Default")
    (run,) = client.search_runs([experiment.experiment_id])
    for tag, values in metrics(folder).items():
        logged = {point.step: point.value for point in client.get_metric_history(run.info.run_id, tag)}
        assert logged == pytest.approx(values), tag
    names = {"rollout/samples/step00001.md"} | {f"{tag}/step{step:05d}.json" for tag in HISTOGRAMS for step in (1, 2)}
    root = Path(re.sub("^file:(//)?", "", run.info.artifact_uri))
    assert names == {path.relative_to(root).as_posix() for path in root.rglob("*.*")}
    shown = json.loads((root / "gradnorm/per_sample/step00002.json").read_text())
    assert len(shown["edges"]) == len(shown["counts"]) + 1
    assert sum(shown["counts"]) > 0
    assert run.data.params["seed"] == "1"


def test_wandb(ran):
    folder = ran("wandb")
    (table,) = (folder / "wandb").glob("offline-run-*/files/media/table/rollout/samples_*.table.json")
    shown = json.loads(table.read_text())
    assert shown["columns"] == ["", "prompt", "response", "reward", "advantage", "weight", "share of the update"]
    assert {row[0] for row in shown["data"]} == {"best", "worst", "largest share"}
    (record,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    logged = record.read_bytes()
    assert all(tag.encode() in logged for tag in (*HISTOGRAMS, *metrics(folder)))
    assert logged.count(b'"histogram"') >= 2 * len(HISTOGRAMS)  # their type, at each of two steps, and in a summary
