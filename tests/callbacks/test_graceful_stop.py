"""What a signal does to a run and to its job; `test_slurm.py` has a real cluster."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest
from collectives import BesideAnother

from callbacks.graceful_stop import GracefulStop
from oblr.run import ranks, stopping
from oblr.run.requeue import requeue
from oblr.run.stopping import SIGNALS, process


@pytest.fixture(autouse=True)
def unheard(monkeypatch):
    """What a process has before the first signal."""
    for name in ("received", "stage", "folder", "kept"):
        monkeypatch.setattr(process, name, getattr(process, name))


def trainer(folder, epoch=0):
    return SimpleNamespace(should_stop=False, current_epoch=epoch, max_epochs=3, default_root_dir=str(folder))


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """What scontrol is asked for; without a cluster."""
    asked = tmp_path / "asked"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    return asked


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_training_waits_for_the_step_to_end(number, tmp_path):
    stop, run = GracefulStop(), trainer(tmp_path)
    stop.on_train_start(run, None)
    stop.on_train_batch_start(run, None, None, 0)
    process.received = number
    stop.on_train_epoch_end(run, None)
    assert stop.received == number
    assert run.should_stop


def test_what_a_signal_meets_is_the_step_under_way(tmp_path):
    """Up to the first update nothing is lost; then the step is finished, until all steps are."""
    stop, run, lines = GracefulStop(), trainer(tmp_path), []
    stopping.at_once("stopped; nothing has been trained")
    stopping.owns(tmp_path)
    stop.on_train_start(run, None)
    stop.on_train_epoch_start(run, None)
    assert not process.stage.waits
    for epoch in range(run.max_epochs):
        run.current_epoch = epoch
        stop.on_train_epoch_start(run, None)
        before = process.stage
        stop.on_train_batch_start(run, None, None, 0)
        assert epoch == 0 or process.stage == before  # what samples belongs to the step
        assert process.folder == ("" if epoch else str(tmp_path))
        lines.append(process.stage.line)
        stop.on_train_epoch_end(run, None)
    assert [next(n for n in range(9) if f"step {n}" in line) for line in lines] == [1, 2, 3]
    assert process.stage.waits
    assert "step" not in process.stage.line


def test_a_signal_to_one_rank_stops_all(monkeypatch, tmp_path):
    monkeypatch.setattr(ranks, "_run", BesideAnother(int(signal.SIGTERM)))
    stop, run = GracefulStop(), trainer(tmp_path)
    stop.on_train_epoch_end(run, None)
    assert run.should_stop
    assert stop.received == signal.SIGTERM


@pytest.mark.parametrize(
    ("number", "settings", "expected"),
    [
        (signal.SIGTERM, {"SLURM_JOB_ID": "7"}, "requeue Incomplete 7\n"),
        (signal.SIGUSR1, {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, "requeue Incomplete 7\n"),
        (
            signal.SIGUSR1,
            {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"},
            "requeue Incomplete 5_2\n",
        ),
        (signal.SIGINT, {"SLURM_JOB_ID": "7"}, ""),  # the user has asked
        (signal.SIGTERM, {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1"}, ""),  # the first rank does it
        (signal.SIGTERM, {}, ""),
    ],
)
def test_a_job_goes_back_into_the_queue_where_slurm_has_asked(number, settings, expected, queue, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    requeue(number)
    assert (queue.read_text() if queue.exists() else "") == expected


@pytest.mark.parametrize("scontrol", [None, "echo no such job >&2; exit 1", "exec sleep 100"])
def test_a_job_that_cannot_go_back_into_the_queue_says_so_in_one_line(scontrol, queue, tmp_path, monkeypatch, caplog):
    """In a container there may be no SLURM; whatever happens, the run ends as it would have."""
    monkeypatch.setattr(sys.modules[requeue.__module__], "PATIENCE", 0.2)
    if scontrol is None:
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    else:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{scontrol}\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    requeue(signal.SIGUSR1)
    (line,) = caplog.messages
    assert line.startswith("job 7 is not queued again: ")
    assert "\n" not in line


def test_a_task_that_is_told_of_an_array_alone_is_queued_by_its_own_number(queue, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    requeue(signal.SIGTERM)
    assert queue.read_text() == "requeue Incomplete 7\n"
