"""What a signal does to a run and to its job; `test_slurm.py` has a real cluster."""

import os
import signal
from types import SimpleNamespace

import pytest
from collectives import BesideAnother

from callbacks import graceful_stop
from callbacks.graceful_stop import SIGNALS, GracefulStop
from oblr.run import ranks


@pytest.fixture(autouse=True)
def own_handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_in_training_waits_for_the_step_to_end(number):
    stop = GracefulStop()
    stop.on_train_start(None, None)
    os.kill(os.getpid(), number)
    assert stop.received == number
    trainer = SimpleNamespace(should_stop=False)
    stop.on_train_epoch_end(trainer, None)
    assert trainer.should_stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_training_ends_the_process(number, queue):
    stop = GracefulStop()
    stop.listen()
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number


def test_a_second_ctrl_c_does_not_wait(queue):
    stop = GracefulStop()
    stop.on_train_start(None, None)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_to_one_rank_stops_all(monkeypatch):
    monkeypatch.setattr(ranks, "_run", BesideAnother(int(signal.SIGTERM)))
    stop, trainer = GracefulStop(), SimpleNamespace(should_stop=False)
    stop.on_train_epoch_end(trainer, None)
    assert trainer.should_stop
    assert stop.received == signal.SIGTERM


@pytest.mark.parametrize(
    ("number", "settings", "expected"),
    [
        (signal.SIGTERM, {"SLURM_JOB_ID": "7"}, "requeue 7\n"),
        (signal.SIGUSR1, {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, "requeue 7\n"),
        (
            signal.SIGUSR1,
            {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"},
            "requeue 5_2\n",
        ),
        (signal.SIGINT, {"SLURM_JOB_ID": "7"}, ""),  # the user has asked
        (signal.SIGTERM, {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1"}, ""),  # the first rank does it
        (signal.SIGTERM, {}, ""),
    ],
)
def test_a_job_goes_back_into_the_queue_where_slurm_has_asked(number, settings, expected, queue, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    stop = GracefulStop()
    stop.received = number
    stop.requeue()
    assert (queue.read_text() if queue.exists() else "") == expected


@pytest.mark.parametrize("scontrol", [None, "echo no such job >&2; exit 1", "exec sleep 100"])
def test_a_job_that_cannot_go_back_into_the_queue_says_so_in_one_line(scontrol, queue, tmp_path, monkeypatch, caplog):
    """In a container there may be no SLURM; whatever happens, the run ends as it would have."""
    monkeypatch.setattr(graceful_stop, "PATIENCE", 0.2)
    if scontrol is None:
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    else:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{scontrol}\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    stop = GracefulStop()
    stop.received = signal.SIGUSR1
    stop.requeue()
    (line,) = caplog.messages
    assert line.startswith("job 7 is not queued again: ")
    assert "\n" not in line


def test_a_task_that_is_told_of_an_array_alone_is_queued_by_its_own_number(queue, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    stop = GracefulStop()
    stop.received = signal.SIGTERM
    stop.requeue()
    assert queue.read_text() == "requeue 7\n"
