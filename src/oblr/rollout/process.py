"""A vLLM server as a child of this run, which does not outlive it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from oblr.errors import EngineDiedError
from oblr.rollout.client import Client

#: Runs the server in a process group of its own and ends all of it with either of the two: the server, whose own
#: children would live on, and this run, however it ends: the guard then reads the end of its standard input.
GUARD = """
trap "" TERM
("$@" < /dev/null; kill -KILL 0) &
read -r end
kill -TERM 0; sleep 5; kill -KILL 0
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ServerProcess:
    """Starts ``python -m vllm…`` on a free port of this machine.

    Args:
        arguments: of the server, address excepted.
        environment: what it has besides this process's variables.
        log: file to which its output is added.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path):
        port = free_port()
        command = [sys.executable, "-m", *arguments, "--host", "127.0.0.1", "--port", str(port)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                ["sh", "-c", GUARD, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.url, self.log = f"http://127.0.0.1:{port}", log

    def wait(self, seconds: float) -> None:
        """Until the server answers.

        Raises:
            EngineDiedError: it ended, or did not answer in time.
        """
        client, end = Client(self.url), time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            try:
                return client.get("/health", timeout=5)
            except EngineDiedError:
                time.sleep(0.2)
        happened = f"did not answer within {seconds:g} s" if self.process.poll() is None else "ended while it started"
        self.stop()
        raise EngineDiedError(f"the vLLM server {happened}; see {self.log}")

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
