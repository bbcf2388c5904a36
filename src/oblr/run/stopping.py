"""What Ctrl-C, SIGTERM and SIGUSR1 do: within a second one line says it, and no traceback follows.

Python calls its handlers between two instructions of the main thread, which may be inside a library for minutes. So a
thread reads the bytes that C writes for signals (:func:`signal.set_wakeup_fd`), says the line, and ends the process
where nothing would be lost. Where a library holds up all threads, :mod:`oblr.run.bystander` does so in their place.

A script calls :func:`listen` before it imports what is large, and says by :func:`at_once` and :func:`waits` what a
signal would meet. Nothing of this happens in a process that does not listen: there these only note it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, runtime_checkable

from oblr.run import bystander
from oblr.run.plain import plain

#: What asks a process to end. SLURM sends the last two before it takes the machine away.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
#: Seconds within which a signal that programs pass on, as torchrun and a sweep do, comes twice to whom it meets once.
PASSED_ON = 1.0
#: Seconds that a line may take to be shown: who has stopped the terminal's output still stops the run.
SHOWN = 0.5


@dataclass(frozen=True)
class Stage:
    """What happens when a signal comes: what is said, and whether the process ends at once.

    Attributes:
        line: what is said then; nothing where it is empty.
        waits: whether the process goes on, to end by itself; else it ends at once.
        again: what is said where a second one ends the process; None: that one is left to others.
        status: the process's status where it ends at once; None: that of the signal.
    """

    line: str = "stopped"
    waits: bool = False
    again: str | None = "stopped"
    status: int | None = None


@runtime_checkable
class Graceful(Protocol):
    """A callback that ends a run between two steps, where a signal asks for it.

    Attributes:
        received: the signal that ended the run on all ranks, if one did.
    """

    received: signal.Signals | None

    def tell(self, trainer: Any, step: int) -> None:
        """Set what a signal does and says while ``step`` is not done yet."""


class Listener:
    """Hears the signals of this process.

    Attributes:
        received: the first that came.
        silent: whether another process speaks, as rank 0 does for all.
        say: shows a line; told whether it is the last.
        endings: what is done before a signal ends the process.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.stage, self.folder = Stage(), ""
        self.kept: list[str] | None = None
        self.silent = any(os.environ.get(name, "0") != "0" for name in ("LOCAL_RANK", "RANK"))
        self.say: Callable[[str, bool], None] = _write
        self.endings: list[Callable[[], None]] = []
        self.listening, self.answered, self.last = False, False, 0.0

    def start(self) -> None:
        self.reader, self.writer = socket.socketpair()
        self.writer.setblocking(False)
        self.notes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - for as long as the process lives
        self.listening = True
        os.pwrite(self.notes.fileno(), b"\0\0", bystander.ROOM)
        self.note()
        self.take()
        os.register_at_fork(after_in_child=self._forked)
        shared = (self.reader.fileno(), self.notes.fileno(), os.dup(2))
        subprocess.Popen(
            [sys.executable, "-I", "-S", bystander.__file__, *map(str, (*shared, os.getpid()))],
            pass_fds=shared,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # no Ctrl-C reaches it
        )
        os.close(shared[2])
        threading.Thread(target=self._listen, daemon=True).start()

    def take(self) -> None:
        """Take the signals, which other libraries may have taken."""
        if self.listening:
            for number in SIGNALS:
                signal.signal(number, self._wake)
            signal.set_wakeup_fd(self.writer.fileno(), warn_on_full_buffer=False)

    def _wake(self, number: int, frame: FrameType | None) -> None:
        """The thread has heard it already, unless somebody else has taken what wakes it."""
        if signal.set_wakeup_fd(self.writer.fileno(), warn_on_full_buffer=False) != self.writer.fileno():
            self.writer.send(bytes([number]))

    def _forked(self) -> None:
        """A child that is forked has its own life: its signals are none of ours."""
        if self.listening:
            self.listening = False
            signal.set_wakeup_fd(-1)
            for number in SIGNALS:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def _listen(self) -> None:
        """A signal is taken away when it has been answered: until then the other process may have to do that."""
        while head := self.reader.recv(1, socket.MSG_PEEK):
            spoken, _ = os.pread(self.notes.fileno(), 2, bystander.ROOM)
            os.pwrite(self.notes.fileno(), b"\1", bystander.ROOM + 1)
            if head[0] in SIGNALS:
                self.hear(signal.Signals(head[0]), spoken > 0)
            self.reader.recv(1)
            os.pwrite(self.notes.fileno(), bytes([max(spoken - 1, 0), 0]), bystander.ROOM)
            self.answered = self.received is not None
            self.note()

    def hear(self, number: signal.Signals, spoken: bool = False) -> None:
        """Do what is to be done; ``spoken``: it has been said already."""
        now, stage = time.monotonic(), self.stage
        since, self.last = now - self.last, now
        if self.received is None:
            if not stage.waits:
                self.received = number
                return self.end(number, None if spoken else stage.line)
            if not spoken:
                self.speak(stage.line)
            self.received = number  # who waits for it may end the process at once
            return None
        insists = number == signal.SIGINT or (
            number == signal.SIGTERM and self.received != signal.SIGUSR1 and since > PASSED_ON
        )
        if insists and stage.again is not None:
            self.end(number, None if spoken else stage.again)

    def insist(self, because: str) -> None:
        """End as a second signal would: what this process was to end with does not come."""
        if self.received is not None:
            self.end(self.received, f"{self.stage.again or 'stopped now'}; {because}")

    def end(self, number: signal.Signals, line: str | None) -> None:
        """End this process, whatever its other threads are doing; its children end as it has ended."""
        try:
            self.speak(line or "", last=True)
            if self.folder:
                bystander.clear(self.folder, self.kept)
            for action in self.endings:
                action()
        finally:
            os._exit(128 + number if self.stage.status is None else self.stage.status)

    def speak(self, line: str, last: bool = False) -> None:
        if not self.silent:
            speaking = threading.Thread(target=self.say, args=(line, last), daemon=True)
            speaking.start()
            speaking.join(SHOWN)

    def note(self) -> None:
        """For the process beside this one."""
        if self.listening:
            lines = {"line": self.stage.line, "again": self.stage.again}
            said = {name: line if line is None else plain(line)[:1000] for name, line in lines.items()}
            told = (
                vars(self.stage)
                | said
                | {
                    **{"received": self.answered, "silent": self.silent},
                    **{"folder": self.folder, "kept": self.kept},
                }
            )
            os.pwrite(self.notes.fileno(), json.dumps(told).encode().ljust(bystander.ROOM, b"\0"), 0)


def _write(line: str, last: bool) -> None:
    """Before there is anything else on the screen."""
    if line:
        os.write(2, f"{plain(line)}\n".encode())


process = Listener()


def listen(line: str) -> None:
    """Take this process's signals; until something else is said, one ends it at once and ``line`` says so."""
    process.stage = Stage(line)
    process.start()


def at_once(line: str, status: int | None = None) -> None:
    """From now on a signal ends the process at once."""
    process.stage = Stage(line, again=line, status=status)
    process.note()


def waits(line: str, again: str | None) -> None:
    """From now on the first signal is noted, and a second one ends the process (``again`` None: it does not)."""
    process.stage = Stage(line, True, again)
    process.note()


def contents(folder: Path) -> list[str] | None:
    """Names of what is there; None where the folder is not."""
    return os.listdir(folder) if folder.is_dir() else None


def owns(folder: Path | None, kept: list[str] | None = None) -> None:
    """What is in this folder, but for what was there before (None: not even the folder), goes when a signal ends it."""
    process.folder, process.kept = str(folder.resolve()) if folder else "", kept
    process.note()
