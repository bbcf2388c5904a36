"""What a warm process starts of Python's scripts is forked from what the process was before it ran anything.

The nursery is a process beside it that waits for requests. It forks the new process, which becomes a child of the one
that asked when the process between it and the nursery ends: the asking one is the nearest subreaper.
"""

import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

_PR_SET_CHILD_SUBREAPER = 36
#: What Popen has made of stdin, stdout and stderr.
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_START = inspect.signature(subprocess.Popen._execute_child)

#: Command without the interpreter, working folder and environment of a new process.
Request = tuple[list[str], str, dict[str, str]]


def open(become: Callable[[Request], NoReturn]) -> None:
    """Open one beside this process; from now on it starts scripts through it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent, (asking, asked) = os.getpid(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        asking.close()
        _tend(asked, parent, become)
    asked.close()

    class Popen(subprocess.Popen):
        def _execute_child(self, *given: Any) -> None:
            start = _START.bind(self, *given).arguments
            command, ends = list(start["args"]), (start["p2cread"], start["c2pwrite"], start["errwrite"])
            special = start["shell"] or start["preexec_fn"] or start["start_new_session"]
            if special or command[0] != sys.executable or command[1][-3:] != ".py":
                return super()._execute_child(*given)
            environment = dict(os.environ if start["env"] is None else start["env"])
            request = json.dumps([command[1:], os.fspath(start["cwd"] or os.getcwd()), environment])
            pipes = [usual if own == -1 else own for usual, own in enumerate(ends)]
            socket.send_fds(asking, [request.encode()], pipes)
            self.pid, self._child_created = int(asking.recv(64)), True
            self._close_pipe_fds(*(start[name] for name in PIPES))

    subprocess.Popen = Popen  # type: ignore[misc]


def _tend(asked: socket.socket, parent: int, become: Callable[[Request], NoReturn]) -> NoReturn:
    while True:
        request, pipes, _, _ = socket.recv_fds(asked, 2**20, 3)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            if os.fork():
                os._exit(0)
            while os.getppid() != parent:
                time.sleep(0.001)
            asked.send(str(os.getpid()).encode())
            asked.close()
            for usual, own in enumerate(pipes):
                os.dup2(own, usual)
                os.close(own)
            become(json.loads(request))
        os.wait()
        for own in pipes:
            os.close(own)
