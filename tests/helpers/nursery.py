"""What a warm process starts of Python's programs is forked from what the process was before it ran anything.

The nursery is a process beside it that waits for requests. It forks the new process, which becomes a child of the one
that asked when the process between it and the nursery ends: the asking one is the nearest subreaper.
"""

import ctypes
import fcntl
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

_PR_SET_CHILD_SUBREAPER = 36
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
#: What Popen has made of stdin, stdout and stderr.
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_START = inspect.signature(subprocess.Popen._execute_child)

#: Command without the interpreter, working folder and environment of a new process. It is a script, or code after -c.
Request = tuple[list[str], str, dict[str, str]]


def open_beside(become: Callable[[Request], NoReturn]) -> None:
    """Fork one off this process; from now on this process starts scripts through it."""
    parent, (asking, asked) = os.getpid(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        asking.close()
        tend(asked, parent, become)
    asked.close()
    subprocess.Popen = popen(asking)  # type: ignore[misc]


def popen(asking: socket.socket) -> type[subprocess.Popen]:
    """A Popen that leaves what is :func:`ours` to the nursery at the other end, and starts anything else as ever."""
    one_at_a_time, owner = threading.Lock(), os.getpid()

    class Popen(subprocess.Popen):
        def _execute_child(self, *given: Any) -> None:
            start = _START.bind(self, *given).arguments
            command, ends = list(start["args"]), (start["p2cread"], start["c2pwrite"], start["errwrite"])
            forked = os.getpid() != owner  # a child of the owner's own could never be the new process's parent
            special = forked or start["shell"] or start["preexec_fn"] or isinstance(start["args"], str | bytes)
            if special or command[0] != sys.executable or not ours(command[1:]):
                return super()._execute_child(*given)
            environment = {**(os.environ if start["env"] is None else start["env"])}
            folder, arguments = os.path.abspath(start["cwd"] or "."), list(map(str, command[1:]))
            pipes = [usual if own == -1 else own for usual, own in enumerate(ends)]
            passed = list(start["pass_fds"])
            request = json.dumps([arguments, folder, environment, start["start_new_session"], passed])
            with one_at_a_time:
                _adopt_orphans(True)
                socket.send_fds(asking, [request.encode()], [*pipes, *passed])
                self.pid, self._child_created = int(asking.recv(64)), True
                _adopt_orphans(False)
            self._close_pipe_fds(*(start[name] for name in PIPES))

    return Popen


def ours(arguments: list[str]) -> bool:
    """Whether an interpreter with these arguments runs a script, or code as the project's own programs start it."""
    return str(arguments[0]).endswith(".py") or list(map(str, arguments[:2])) == ["-P", "-c"]


def _adopt_orphans(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def tend(asked: socket.socket, parent: int, become: Callable[[Request], NoReturn]) -> NoReturn:
    """Be the nursery of ``parent`` until that closes its end, whatever signals their group gets."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        request, given, _, _ = socket.recv_fds(asked, 2**20, 16)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            if os.fork():
                os._exit(0)
            while os.getppid() != parent:
                time.sleep(0.001)
            *wanted, own_session, passed = json.loads(request)
            if own_session:
                os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGTERM, *FAULTS):  # some library of those that are imported takes the latter
                signal.signal(number, signal.SIG_DFL)
            asked.send(str(os.getpid()).encode())
            asked.close()
            away = [fcntl.fcntl(own, fcntl.F_DUPFD, 1000) for own in given]  # from where they are to go
            for own in given:
                os.close(own)
            for number, own in zip([0, 1, 2, *passed], away, strict=True):
                os.dup2(own, number)
                os.close(own)
            become((wanted[0], wanted[1], wanted[2]))
        os.wait()
        for own in given:
            os.close(own)
