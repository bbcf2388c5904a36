"""What a signal does, in processes that are stuck in ways in which Python's own handlers are not called."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
#: What stands before each process's own lines. A mutex that is locked twice waits for ever, whatever signals come;
#: through PyDLL no other thread of Python's runs meanwhile.
HEAD = """
import ctypes, os, signal, sys, time
from pathlib import Path
from oblr.run import stopping
stopping.listen("stopped; nothing has been done")
def stuck(library):
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    print("ready", flush=True)
    library.pthread_mutex_lock(mutex)
"""
RESTLESS, ASLEEP, HELD = "while True: time.sleep(0.01)", "stuck(ctypes.CDLL(None))", "stuck(ctypes.PyDLL(None))"


class Started:
    """A process of these lines; it has said that it is ready."""

    def __init__(self, *lines: str, **settings: str):
        code = HEAD + "\n".join(lines)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}/src", **settings},
        )
        self.limit = threading.Timer(60, self.process.kill)
        self.limit.daemon = True
        self.limit.start()
        assert self.process.stdout.readline() == "ready\n"
        time.sleep(0.1)  # by then it is where it stays

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def said(self) -> tuple[str, float]:
        """The next line, and how many seconds it took."""
        start = time.monotonic()
        return self.process.stderr.readline().rstrip("\n"), time.monotonic() - start

    def ended(self) -> tuple[int, str]:
        """Its status, and what else it said."""
        _, err = self.process.communicate(timeout=60)
        self.limit.cancel()
        return self.process.returncode, err


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("doing", [f'print("ready", flush=True)\n{RESTLESS}', ASLEEP])
def test_what_has_nothing_to_lose_says_so_and_ends(number, doing):
    run = Started(doing)
    run.send(number)
    line, seconds = run.said()
    assert line == "stopped; nothing has been done"
    assert seconds < 1
    assert run.ended() == (128 + number, "")


def test_where_no_thread_runs_the_line_comes_all_the_same_and_the_process_ends(tmp_path):
    run = Started(f"stopping.owns(Path({str(tmp_path / 'made')!r}))", f"Path({str(tmp_path / 'made')!r}).mkdir()", HELD)
    run.send(signal.SIGINT)
    line, seconds = run.said()
    assert line == "stopped; nothing has been done"
    assert seconds < 1
    assert run.ended() == (-signal.SIGKILL, "")
    assert not (tmp_path / "made").exists()


WAITS = 'stopping.waits("finishing; again to stop now", "stopped now")'


@pytest.mark.parametrize("number", SIGNALS)
def test_what_is_under_way_goes_on_to_its_end(number):
    end = 'print("ready", flush=True)\nwhile not stopping.process.received: time.sleep(0.01)\nsys.exit(7)'
    run = Started(WAITS, end)
    run.send(number)
    assert run.said()[0] == "finishing; again to stop now"
    assert run.ended() == (7, "")


@pytest.mark.parametrize(("doing", "status"), [(ASLEEP, 128 + signal.SIGINT), (HELD, -signal.SIGKILL)])
def test_a_second_ctrl_c_does_not_wait(doing, status):
    run = Started(WAITS, doing)
    for expected in ("finishing; again to stop now", "stopped now"):
        run.send(signal.SIGINT)
        line, seconds = run.said()
        assert line == expected
        assert seconds < 1
    assert run.ended() == (status, "")


def test_a_signal_that_programs_pass_on_is_one_signal():
    """torchrun sends SIGTERM to whom a Ctrl-C has met already; a job's SIGTERM meets the sweep, which passes it on."""
    for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)):
        run = Started(WAITS, 'print("ready", flush=True)', RESTLESS)
        run.send(first)
        assert run.said()[0] == "finishing; again to stop now"
        run.send(second)
        time.sleep(1.5)
        assert run.process.poll() is None
        run.send(signal.SIGTERM)
        assert run.ended() == (128 + signal.SIGTERM, "stopped now\n")


def test_the_signals_of_a_forked_child_are_its_own():
    leave = "signal.signal(signal.SIGINT, lambda *_: os._exit(0))"
    child = f'if os.fork() == 0:\n    {leave}\n    print("ready", flush=True)\n    signal.pause()\n'
    run = Started(WAITS, child + RESTLESS)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.said()[0] == "finishing; again to stop now"
    time.sleep(0.5)
    assert run.process.poll() is None  # the group's one Ctrl-C was one
    run.send(signal.SIGINT)
    assert run.ended()[0] == 130


def test_other_libraries_may_take_what_wakes():
    taken = (
        "import socket\npair = socket.socketpair()\npair[1].setblocking(False)\nsignal.set_wakeup_fd(pair[1].fileno())"
    )
    run = Started(taken, 'print("ready", flush=True)', RESTLESS)
    run.send(signal.SIGINT)
    assert run.ended() == (130, "stopped; nothing has been done\n")


@pytest.mark.parametrize("there", [False, True])
def test_what_was_there_before_stays(tmp_path, there):
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
        (folder / "notes").write_text("the user's")
    owned = f"folder = Path({str(folder)!r})\nstopping.owns(folder, stopping.contents(folder))"
    made = "(folder / 'policy').mkdir(parents=True)\n(folder / 'run.json').touch()\n(folder / 'policy' / 'x').touch()"
    run = Started(owned, made, 'print("ready", flush=True)', RESTLESS)
    run.send(signal.SIGINT)
    assert run.ended()[0] == 130
    assert [path.name for path in tmp_path.rglob("*")] == (["run", "notes"] if there else [])


def test_whoever_has_stopped_the_terminals_output_still_stops_the_run():
    ours, theirs = pty.openpty()
    code = HEAD + f'print("ready", flush=True)\nos.set_blocking(2, True)\n{RESTLESS}'
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src"},
    )
    os.close(theirs)
    assert process.stdout.readline() == b"ready\n"
    os.write(ours, b"\x13")  # Ctrl-S
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    os.close(ours)


def test_nothing_is_left_of_the_process_beside():
    run = Started('print("ready", flush=True)', "print(Path('/proc/self/task').exists())")
    find = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True)
    beside = find.stdout.split()
    run.ended()
    deadline = time.monotonic() + 10
    while any(Path("/proc", pid).exists() for pid in beside) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path("/proc", pid).exists() for pid in beside)
