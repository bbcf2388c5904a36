"""The short form of ``benchmarks/faults.py``, which says what is done to the runs."""

import json
import os
import subprocess
from types import SimpleNamespace

import pytest
import warm
from faults import BOUND, FAULTS, TWO, Reference, Setup, by_age, face, kill_chain, one_line, step_of, train, truncate
from strikes import Kill


@pytest.fixture(autouse=True, scope="module")
def warm_runs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", warm.popen())
        yield


SHORT = Setup("one process", ("rollout.max_new_tokens=24", "rollout.engine=hf"), steps=3, every=1, chain=2)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference(SHORT, tmp_path_factory.mktemp("reference") / "run")


@pytest.mark.wide
def test_a_killed_run_ends_with_the_same_bits(reference, tmp_path):
    """While it writes a checkpoint, and during rollouts."""
    chain = kill_chain(reference, tmp_path / "run", seed=63)
    assert [kill.phase for kill in chain.kills] == ["checkpoint", "rollout"]
    assert chain.same, chain


def test_a_kill_comes_when_its_phase_ends_at_the_latest(tmp_path, monkeypatch):
    """How fast the machine is decides the moment within a phase, and no more."""
    killed = []
    monkeypatch.setattr(os, "kill", lambda process, signal: killed.append(json.loads(journal.read_text())))
    journal = tmp_path / "journal"
    kill = Kill("rollout", step=2, journal=str(journal), seconds=600)
    for epoch in range(3):
        kill.trainer = SimpleNamespace(current_epoch=epoch)
        kill.enter("rollout")
        kill.enter("")
        assert killed == [{"phase": "rollout", "step": 2}] * (epoch > 0)


@pytest.mark.wide
def test_faults_leave_what_was_there(reference, tmp_path):
    """One after the other in one run, which at last loses its newest checkpoint and still ends with the same bits."""
    folder = reference.until(2, tmp_path / "run")
    for name in ("disk fills up during rollouts", "folder becomes read-only"):
        (fault,) = (fault for fault in FAULTS if fault.name == name)
        ended, intact = face(fault, SHORT, folder)
        assert one_line(ended, fault.words), ended
        assert intact, name
    previous, newest = by_age(folder / "checkpoints")
    truncate(newest)
    mended = train(folder, *SHORT.command, "steps=3", "ckpt_path=auto")
    assert f"resuming    {previous}" in mended.screen
    assert step_of(by_age(folder / "checkpoints")[-1]) == 3
    assert reference.has(folder)


@pytest.mark.parametrize(
    ("setup", "strike", "cause"),
    [
        (TWO[0], "Kill, phase: update, seconds: 0", "was killed by SIGKILL"),
        (TWO[1], "Command, phase: rollout, command: exit 3", "ended with status 1: subprocess.CalledProcessError"),
    ],
    ids=["killed", "failed"],
)
@pytest.mark.wide
def test_no_rank_outlives_another(tmp_path, setup, strike, cause):
    ended = train(tmp_path / "run", *setup.command, "steps=2", strike=f"{strike}, step: 1, rank: 1")
    assert one_line(ended, f"rank 1 {cause}"), ended
    assert 0 < ended.seconds < BOUND


@pytest.mark.wide
def test_a_rank_that_waits_for_a_dead_one_says_so(tmp_path):
    """As NCCL lets it wait. Lightning's own watch would have killed it by then."""
    waits = f"+callbacks.waits={{_target_: strikes.Wait, phase: update, step: 1, journal: {tmp_path / 'waits'}}}"
    strike = "Kill, phase: update, seconds: 0, step: 1, rank: 1"
    ended = train(tmp_path / "run", *TWO[0].command, "steps=2", waits, strike=strike)
    assert one_line(ended, "rank 1 was killed by SIGKILL"), ended
    assert 0 < ended.seconds < BOUND
