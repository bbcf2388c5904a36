"""The lock of a folder: who holds it is named, and it ends with its holder, whatever that has started."""

import json
import os
import signal
import subprocess
import sys

import pytest

from oblr.errors import SettingError
from oblr.run.lock import LOCK, sole_user

HOLD = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, "src")
from oblr.run.lock import sole_user
with sole_user(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60)
"""


def test_a_lock_ends_with_its_holder_and_not_with_its_children(tmp_path):
    """A killed run's processes that score live on for a moment; the run that goes on need not wait for them."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    child = int(holder.stdout.readline())
    try:
        named = rf"^a\.b: process {holder.pid} on {os.uname().nodename} \(since "
        with pytest.raises(SettingError, match=named), sole_user(tmp_path, "a.b"):
            raise AssertionError("held twice")
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives
        with sole_user(tmp_path) as unlocked:
            assert unlocked == ""
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_link_in_place_of_the_lock(tmp_path):
    (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingError, match="is a link"), sole_user(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with sole_user(tmp_path) as unlocked:
        assert "has no locks" in unlocked
