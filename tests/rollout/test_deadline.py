"""A sync that hangs: in Python it gets an error, in a collective the process ends."""

import signal
import time

import pytest
from conftest import ROOT

from oblr.errors import SyncTimeoutError
from oblr.rollout.deadline import deadline
from oblr.run.manifest import is_complete


def test_a_block_that_is_done_in_time_leaves_no_trace():
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]
    with deadline(0.2, SyncTimeoutError("too late")):
        pass
    assert signal.getsignal(signal.SIGALRM) == before[0]
    assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) == bool(before[1])  # pytest has one of its own
    time.sleep(1.5)


def test_an_error_of_the_block_itself_is_kept():
    with pytest.raises(KeyError), deadline(0.2, SyncTimeoutError("too late")):
        raise KeyError


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sync_that_hangs_ends_the_run(train, tmp_path, monkeypatch, ranks):
    """Of two ranks one hangs in Python, and the other waits for it in a collective."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"), prepend=":")
    several = ["trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2"] if ranks == 2 else []
    settings = ("rollout.sync_timeout=2", "callbacks.checkpoints.every=1", "steps=3")
    result = train(*settings, *several, "rollout.engines.hf._target_=stale.HangingHF")
    assert result.returncode == 2, result.stderr
    line = "error: rollout.sync_timeout: step 2: the rollout engine did not get the policy's weights within 2 s"
    assert line in result.stdout + result.stderr
    assert is_complete(tmp_path / "run" / "checkpoints" / "step-00001.ckpt")


def test_an_engine_that_keeps_dying_ends_the_run(train, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"), prepend=":")
    result = train("rollout.restarts=1", "steps=3", "rollout.engines.hf._target_=stale.DyingHF")
    assert result.returncode == 2
    assert result.stderr == "error: it died; see docs/machines.md\n"
    assert "warning     step 2 is repeated: the rollout engine died and is restarted (1 of" in result.stdout
