"""The processes that score: each is a program that the run starts with :func:`main`, confined, and its children.

A worker loads the reward and meets no response itself. It has a single thread, so it can fork: the child that scores
is replaced in milliseconds when it hangs or dies, with everything that the reward imports already there, while the run
that asked for it may be full of threads, engines and devices. Where the reward runs text, each response has a child of
its own, made from a worker that has seen no other; else a child scores on until it dies. What a child has started ends
with it. All end when the connection to the run does, however the run ends.

What children say is passed on unread, and read by the run as data (:mod:`oblr.rewards.verdicts`).
"""

import gc
import json
import os
import pickle
import resource
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from oblr.rewards import lockdown
from oblr.rewards.base import Reward, name, score
from oblr.rewards.confinement import DEVICES, SCRATCH_BYTES, Confinement
from oblr.rewards.verdicts import LONGEST, NONE, Result, line

#: Seconds between looks at what a child has started and how much memory all of it takes.
LOOK = 0.02
#: Processes that a child may start at once.
PROCESSES = 64
#: Seconds of responses that a child is given at once, and seconds after which a worker gives the rest back.
AT_ONCE, PATIENCE = 0.05, 0.5
#: Bytes of files that a child maps, as libraries, beyond what counts as its memory.
LIBRARIES = 2 * 2**30
#: Seconds that it may take to end what a child has started.
ENDING = 60.0
FILE_BYTES, FILES = 64 * 2**20, 256


@dataclass(frozen=True)
class Order:
    """What the run sends first.

    Attributes:
        reward: pickled.
        timeout: seconds per response.
        memory: bytes that a child and all that it starts may take beyond what the worker has.
        confinement: what the worker gives up before it loads the reward.
        folder: that relative names of files are in, where it may be read.
    """

    reward: bytes
    timeout: float
    memory: int
    confinement: Confinement
    folder: str


class Child:
    """A forked process that scores.

    Args:
        worker: that forks it.
        responses: pickled arguments of the reward, which it scores first.
        stays: whether it is given more, else it ends.
    """

    def __init__(self, worker: "Worker", responses: Sequence[bytes], stays: bool):
        more, self.more = os.pipe() if stays else (-1, -1)
        self.said, say = os.pipe()
        self.stays, self.buffer = stays, b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.said)
                if stays:
                    os.close(self.more)
                worker.become_child()
                _score(worker.reward, responses, say, more)
            finally:
                os._exit(1)
        os.close(say)
        if stays:
            os.close(more)

    def give(self, responses: Sequence[bytes]) -> None:
        message = pickle.dumps(list(responses))
        with suppress(BrokenPipeError):  # it has died; its silence will tell
            for part in (len(message).to_bytes(8, "big"), message):
                while part:
                    part = part[os.write(self.more, part) :]

    def close(self) -> None:
        os.close(self.said)
        if self.stays:
            os.close(self.more)


def _score(reward: Reward, responses: Sequence[bytes], say: int, more: int) -> None:
    """A child's life."""
    failures: list[str] = []  # of threads that the reward has started
    threading.excepthook = lambda failure: failures.append(f"{failure.exc_value!r:.200}")
    source = None if more < 0 else os.fdopen(more, "rb")
    while True:
        for response in responses:
            try:
                found = Result(score(reward, *pickle.loads(response)), "scored")
            except Exception as error:
                found = Result(NONE, "error", str(error))
            if failures and not found.problem:
                found = found._replace(problem=f"a thread of {name(reward)} raised {failures.pop()}")
            said = line(found)
            while said:
                said = said[os.write(say, said) :]
        if source is None or len(size := source.read(8)) < 8:
            os._exit(0)
        responses = pickle.loads(source.read(int.from_bytes(size, "big")))


class Worker:
    """Hands responses to children, one child at a time, and ends those that hang, grow or die.

    Args:
        run: connection to the run.
    """

    def __init__(self, run: Connection, order: Order):
        self.run, self.order = run, order
        self.child: Child | None = None
        self.pace = 1
        self.confine()
        with suppress(OSError):
            os.chdir(order.folder)
        self.reward: Reward = pickle.loads(order.reward)
        if hasattr(self.reward, "warm_up"):
            self.reward.warm_up()
        self.settle()
        self.processes = self._processes()

    def settle(self) -> None:
        """Be forked soon: a child's collections leave what it shares with this process alone."""
        gc.collect()
        gc.freeze()
        self.own = lockdown.resident(os.getpid())

    def confine(self) -> None:
        """Give up what the level asks for."""
        confinement = self.order.confinement
        os.chdir(confinement.scratch)
        if not lockdown.LINUX:
            return
        lockdown.unreadable(True)
        lockdown.adopt()
        if confinement.level == "namespaces":
            lockdown.end_with(signal.SIGKILL)  # bwrap is what started it
        if confinement.level == "landlock":
            lockdown.no_new_rights()
            writable = [confinement.scratch, *DEVICES]
            system = [f"/proc/{part}" for part in ("cpuinfo", "filesystems", "meminfo", "stat", "sys", "version")]
            self.files = lockdown.Files([*confinement.readable, *system], writable)
            lockdown.Files([*confinement.readable, "/proc"], writable).closed()

    def become_child(self) -> None:
        """Give up what a response must not have: the way to the run, memory without end, and other processes."""
        order, level = self.order, self.order.confinement.level
        self.run.close()
        os.setsid()
        own = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() if lockdown.LINUX else 0
        total = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if lockdown.LINUX else 0
        for limit, value in (
            (resource.RLIMIT_DATA, own + order.memory),
            (resource.RLIMIT_AS, total + order.memory + LIBRARIES),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, FILE_BYTES),
            (resource.RLIMIT_NOFILE, FILES),
            (resource.RLIMIT_NPROC, self.processes),
        ):
            most = resource.getrlimit(limit)[1]
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            with suppress(ValueError, OSError):  # not every system has all of them
                resource.setrlimit(limit, (value, value))
        if not lockdown.LINUX:
            return
        lockdown.end_with(signal.SIGKILL)
        if level == "landlock":
            self.files.closed()
        if order.confinement.calls is not None:
            lockdown.no_new_rights()
            lockdown.filter_calls(order.confinement.calls)
        lockdown.unreadable(False)

    def _processes(self) -> int:
        """As many as its user may have; where all of the user's are counted, more than the children's alone."""
        here = sum(entry.name.isdigit() for entry in Path("/proc").iterdir()) if lockdown.LINUX else 0
        return 16 * PROCESSES + 8 * here

    def score(self, responses: Sequence[tuple[bytes, bool]]) -> list[object]:
        """What children said, or what became of them, of the first responses, or of all; each with whether it is alone.

        Returns:
            texts that children have said, and pairs of an outcome and what went wrong.
        """
        found: list[object] = []
        start = time.monotonic()
        while len(found) < len(responses) and (not found or time.monotonic() < start + PATIENCE):
            rest, alone = responses[len(found) :], responses[len(found)][1]
            if alone:
                prepare = getattr(self.reward, "prepare", None)
                if prepare is not None and prepare(pickle.loads(rest[0][0])[0]):
                    self.settle()
                found += self._batch([rest[0][0]], alone=True)
                continue
            count = next((place for place, (_, other) in enumerate(rest) if other), len(rest))
            before = time.monotonic()
            batch = self._batch([response for response, _ in rest[: min(count, self.pace)]], alone=False)
            each = (time.monotonic() - before) / len(batch)
            self.pace = max(1, min(2 * self.pace, int(AT_ONCE / max(each, 1e-6))))
            found += batch
        return found

    def _batch(self, responses: Sequence[bytes], alone: bool) -> list[object]:
        """Of the first ones until a child dies, or of all."""
        if self.child is not None and alone:
            self.end_child()
        if self.child is None:
            self.child = Child(self, responses, stays=not alone)
        else:
            self.child.give(responses)
        found: list[object] = []
        while len(found) < len(responses):
            said = self._line(self.child)
            found.append(said)
            if not isinstance(said, str):
                self.end_child()
                return found
        if alone:
            self.end_child()
        return found

    def _line(self, child: Child) -> object:
        """What it says of a response, or what became of it."""
        deadline = time.monotonic() + self.order.timeout
        poll = select.poll()
        for source in (child.said, self.run.fileno()):
            poll.register(source, select.POLLIN)
        looked = time.monotonic()
        while b"\n" not in child.buffer:
            now = time.monotonic()
            if now >= deadline:
                return "timeout", f"no reward within {self.order.timeout:g} s"
            if now >= looked + LOOK:
                looked = now
                if problem := self._excess(child.pid):
                    return "error", problem
                if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) and not poll.poll(0):
                    return self._death(child)
            ready = poll.poll(1000 * max(min(deadline, looked + LOOK) - now, 0.0) + 1)
            if any(source == self.run.fileno() for source, _ in ready):  # it says nothing while it waits: it has ended
                raise EOFError
            if ready:
                part = os.read(child.said, 65_536)
                if not part:
                    return self._death(child)
                child.buffer += part
                if len(child.buffer) > 2 * LONGEST and b"\n" not in child.buffer[:LONGEST]:
                    return "error", f"the process of {name(self.reward)} said too much"
        if time.monotonic() > looked + 2 * LOOK and (
            problem := self._excess(child.pid)
        ):  # this process was kept waiting
            return "error", problem
        said, _, child.buffer = child.buffer.partition(b"\n")
        return said.decode(errors="replace")

    def _death(self, child: Child) -> tuple[str, str]:
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if ended.si_code == os.CLD_EXITED:
            how = f"with status {ended.si_status}, as by os._exit"
        else:
            how = f"by {signal.Signals(ended.si_status).name}"
        killed = ended.si_code != os.CLD_EXITED and ended.si_status == signal.SIGKILL
        return "killed" if killed else "error", f"the process of {name(self.reward)} ended {how}"

    def _excess(self, child: int) -> str:
        """What of its limits a child exceeds together with all that it has started; "" where nothing."""
        if not lockdown.LINUX:
            return ""
        everybody = [child, *lockdown.descendants(child), *self._orphans(child)]
        if len(everybody) - 1 > PROCESSES:
            return f"{name(self.reward)} started more than {PROCESSES} processes"
        if sum(map(lockdown.resident, everybody)) - self.own > self.order.memory:
            taken = sum(map(lockdown.proportional, everybody)) - self.own // 2
            if taken > self.order.memory:
                return f"{name(self.reward)} raised MemoryError: it took more than {self.order.memory / 2**30:g} GiB"
        scratch = self.order.confinement.scratch
        if self.order.confinement.level != "namespaces" and _size(scratch) > SCRATCH_BYTES:
            return f"{name(self.reward)} wrote more than {SCRATCH_BYTES / 2**20:g} MiB"
        return ""

    def _orphans(self, child: int) -> list[int]:
        """What the child's children have left behind."""
        own = Path("/proc/self/task/", str(os.getpid()), "children")
        first = [int(pid) for pid in own.read_text().split() if int(pid) != child]
        return [pid for one in first for pid in (one, *lockdown.descendants(one))]

    def end_child(self) -> None:
        """End it with everything that it has started, and empty its scratch folder."""
        if self.child is not None:
            os.kill(self.child.pid, signal.SIGKILL)
            self.child.close()
            self.child = None
        end = time.monotonic() + ENDING
        while True:
            if self.order.confinement.level == "namespaces" and os.getpid() == 1:
                with suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)  # everything here but this process
            elif lockdown.LINUX:
                own = Path("/proc/self/task/", str(os.getpid()), "children")
                for pid in own.read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
            if time.monotonic() > end:
                os._exit(1)  # what cannot be ended here is not left with the next response
        _empty(self.order.confinement.scratch)


def _size(folder: str) -> int:
    total = 0
    for where, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(where, file)).st_size
    return total


def _empty(folder: str) -> None:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(entry.path)


def main() -> None:
    """A worker's life; its argument is the file descriptor of its connection to the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when it ends
    run = Connection(int(sys.argv[1]))
    os.set_inheritable(run.fileno(), False)
    worker = None
    try:
        order: Order = pickle.loads(run.recv_bytes())
        try:
            worker = Worker(run, order)
        except BaseException as error:  # sys.exit at the end of the reward's module, for one
            run.send_bytes(json.dumps(f"{error!r:.1000}").encode())
            return
        run.send_bytes(b"null")
        while True:
            run.send_bytes(json.dumps(worker.score(pickle.loads(run.recv_bytes()))).encode())
    except (EOFError, OSError):
        if worker is not None:
            with suppress(OSError):
                worker.end_child()
    os._exit(0)
