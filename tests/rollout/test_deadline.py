"""A sync that hangs: in Python it gets an error, in a collective the process ends."""

import signal
import threading

import pytest
from cases import wide
from conftest import ROOT

import oblr.rollout.deadline
from oblr.errors import SyncTimeoutError
from oblr.rollout.deadline import deadline
from oblr.run.manifest import is_complete


def traces():
    """Of SIGALRM, pytest has a timer of its own; and of last resorts that are yet to come."""
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    waiting = [timer for timer in timers if not timer.finished.is_set()]
    return signal.getsignal(signal.SIGALRM), bool(signal.getitimer(signal.ITIMER_REAL)[0]), waiting


def test_a_block_that_is_done_in_time_leaves_no_trace():
    before = traces()
    with deadline(600, SyncTimeoutError("too late")):
        assert len(traces()[2]) == len(before[2]) + 1
    assert traces() == before


def test_an_error_of_the_block_itself_is_kept():
    before = traces()
    with pytest.raises(KeyError), deadline(600, SyncTimeoutError("too late")):
        raise KeyError
    assert traces() == before


def test_a_deadline_that_is_over_before_the_block_begins_leaves_no_trace(monkeypatch):
    """As on a machine that stood still: the last resort must not end the process later, in the middle of other work."""
    monkeypatch.setattr(oblr.rollout.deadline, "GRACE", 600)
    before = traces()
    with pytest.raises(SyncTimeoutError, match="too late"), deadline(1e-6, SyncTimeoutError("too late")):
        signal.pause()
    assert traces() == before


@pytest.mark.parametrize("ranks", wide(1, 2))
def test_a_sync_that_hangs_ends_the_run(train, tmp_path, monkeypatch, ranks):
    """Of two ranks one hangs in Python, and the other waits for it in a collective."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    several = ["trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2"] if ranks == 2 else []
    settings = ("rollout.sync_timeout=2", "callbacks.checkpoints.every=1", "steps=3")
    result = train(*settings, *several, "rollout.engines.hf._target_=stale.HangingHF")
    assert result.returncode == 2, result.stderr
    line = "error: rollout.sync_timeout: step 2: the rollout engine did not get the policy's weights within 2 s"
    assert line in result.stdout + result.stderr
    assert is_complete(tmp_path / "run" / "checkpoints" / "step-00001.ckpt")


@pytest.mark.wide
def test_an_engine_that_keeps_dying_ends_the_run(train, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    result = train("rollout.restarts=1", "steps=3", "rollout.engines.hf._target_=stale.DyingHF")
    assert result.returncode == 2
    assert result.stderr == "error: it died; see docs/machines.md\n"
    assert "warning     step 2 is repeated: the rollout engine died and is restarted (1 of" in result.stdout
