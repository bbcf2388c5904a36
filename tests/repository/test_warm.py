"""A process that has its imports already does what a new one does."""

import signal
import subprocess
import sys

import pytest
import warm
from cases import wide
from conftest import run_script

from oblr.record.curves import read_curves


def both(command, cwd, environment):
    new = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)
    return new, warm.run(command, cwd, environment, timeout=300)


def test_a_program_sees_what_a_new_process_would(tmp_path):
    """Arguments, folder, environment and import path; its output, its last words and its status."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text("")
    (tmp_path / "elsewhere" / "far.py").write_text("")
    (tmp_path / "scripts" / "program.py").write_text(
        "import atexit, os, sys\n"
        "import beside, far\n"
        "atexit.register(print, 'the end')\n"
        "print(__name__, __file__, sys.argv, os.getcwd(), sorted(os.environ), sys.path)\n"
        "print('an error', file=sys.stderr)\n"
        "print('no line', end='')\n"
        "os.system('echo a child')\n"
        "sys.exit(7)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path / "elsewhere"), "LC_CTYPE": "C.UTF-8", "MINE": "1"}
    new, warmed = both(["scripts/program.py", "a=1"], tmp_path, environment)
    assert new.returncode == warmed.returncode == 7
    assert (warmed.stdout, warmed.stderr) == (new.stdout, new.stderr)
    assert "MINE" in new.stdout
    assert new.stdout.endswith("the end\n")


def test_a_program_that_fails(tmp_path):
    (tmp_path / "program.py").write_text("def f():\n    raise KeyError('mine')\n\nf()\n")
    new, warmed = both(["program.py"], tmp_path, {})
    assert new.returncode == warmed.returncode == 1
    assert warmed.stderr.splitlines()[-3:] == new.stderr.splitlines()[-3:]
    assert new.stderr.endswith("KeyError: 'mine'\n")


def test_a_program_that_dies_of_a_fault(tmp_path):
    (tmp_path / "program.py").write_text("import ctypes\nctypes.string_at(0)\n")
    new, warmed = both(["program.py"], tmp_path, {})
    assert new.returncode == warmed.returncode == -signal.SIGSEGV


def test_a_program_that_does_not_end(tmp_path):
    (tmp_path / "program.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(1000)\n")
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        warm.run(["program.py"], tmp_path, {}, timeout=1)
    assert raised.value.stdout == b"begun\n"


PARENT = """
import os, subprocess, sys
child = [sys.executable, "child.py", "a=1"]
said = subprocess.run(child, env={"MINE": "2", "PARENT": str(os.getpid())}, capture_output=True, text=True)
print(said.returncode, said.stdout, said.stderr)
print(subprocess.run(child, env={"MINE": "3", "PARENT": str(os.getpid())}).returncode)
ours, theirs = os.pipe()
code = "import os, sys; print(sys.argv[0], os.getsid(0) == os.getpid()); os.write(int(sys.argv[1]), b'written')"
given = {"pass_fds": [theirs], "stdin": subprocess.DEVNULL, "start_new_session": True}
subprocess.run([sys.executable, "-P", "-c", code, str(theirs)], **given)
os.close(theirs)
print(os.read(ours, 1000), os.read(ours, 1))
killed = subprocess.Popen([sys.executable, "child.py", "wait"], stdout=subprocess.PIPE)
print(killed.stdout.readline())
killed.kill()
print(killed.wait(), subprocess.check_output(["echo", "another program"]))
"""
CHILD = """
import os, sys, time
print(sys.argv, os.environ["MINE"], flush=True)
if sys.argv[1] == "wait":
    time.sleep(1000)
print(os.getppid() == int(os.environ["PARENT"]), file=sys.stderr)
sys.exit(3)
"""


def test_scripts_that_a_program_starts(tmp_path):
    """They are its children, with its output, and end when and as it likes."""
    (tmp_path / "program.py").write_text(PARENT)
    (tmp_path / "child.py").write_text(CHILD)
    new, warmed = both(["program.py"], tmp_path, {"MINE": "1", "PYTHONUNBUFFERED": "1"})
    assert new.returncode == warmed.returncode == 0, warmed.stderr
    assert sorted(warmed.stdout.split()) == sorted(new.stdout.split())
    assert warmed.stderr == new.stderr == "True\n"
    assert "-9 b'another program" in new.stdout


@pytest.mark.parametrize("override", ["policy.dtype=float12", *wide("rollout.grop_size=4")])
def test_what_users_read_is_the_same(override):
    new, warmed = (run_script("train.py", "experiment=pocket", override, cold=cold) for cold in (True, False))
    assert (warmed.returncode, warmed.stdout, warmed.stderr) == (new.returncode, new.stdout, new.stderr)


@pytest.mark.wide
def test_a_run_is_the_same(train, tmp_path):
    for name, cold in (("new", True), ("warm", False)):
        result = train("steps=2", folder=name, cold=cold)
        assert result.returncode == 0, result.stderr
    policies = [(tmp_path / name / "policy" / "model.safetensors").read_bytes() for name in ("new", "warm")]
    assert policies[0] == policies[1]
    new, warmed = (read_curves(tmp_path / name) for name in ("new", "warm"))
    assert new.keys() == warmed.keys()
    assert all(new[tag] == warmed[tag] for tag in new if not tag.startswith(("time/", "throughput/", "memory/")))
