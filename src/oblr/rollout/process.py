"""A vLLM server as a child of this run, which does not outlive it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from oblr.errors import EngineDiedError, GarbledError
from oblr.rollout.client import Client
from oblr.rollout.proof import VARIABLE, make_secret, read_secret
from oblr.run.private import private_folder

#: Runs the server in a process group of its own and ends all of it with either of the two: the server, whose own
#: children would live on, and this run, however it ends: the guard then reads the end of its standard input.
#: The folder goes with the server.
GUARD = """
trap "" TERM
folder=$1; shift
("$@" < /dev/null; rm -rf -- "$folder"; kill -KILL 0) &
read -r end
kill -TERM 0; sleep 5; rm -rf -- "$folder"; kill -KILL 0
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ServerProcess:
    """Starts ``python -m vllm…`` on a free port of this machine, with a secret of its own.

    What the server makes of sockets and files of no further use lies in a folder that no other user may enter.

    Args:
        arguments: of the server, address excepted.
        environment: what it has besides this process's variables.
        log: file to which its output is added.

    Attributes:
        token: the file with the secret.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path):
        port, folder = free_port(), private_folder()
        self.token = folder / "token"
        make_secret(self.token)
        command = [sys.executable, "-m", *arguments, "--host", "127.0.0.1", "--port", str(port)]
        own = {VARIABLE: str(self.token), "TMPDIR": str(folder), "VLLM_RPC_BASE_PATH": str(folder)}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                ["sh", "-c", GUARD, "sh", str(folder), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, **own},
                start_new_session=True,
            )
        self.url, self.log = f"http://127.0.0.1:{port}", log

    def wait(self, seconds: float) -> None:
        """Until the server answers.

        Raises:
            EngineDiedError: it ended, or did not answer in time.
            GarbledError: another process has taken its port.
        """
        client, end = Client(self.url, read_secret(self.token)), time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            try:
                return client.get("/health", timeout=5)
            except GarbledError:
                self.stop()
                raise
            except EngineDiedError:
                time.sleep(0.2)
        happened = f"did not answer within {seconds:g} s" if self.process.poll() is None else "ended while it started"
        self.stop()
        raise EngineDiedError(f"the vLLM server {happened}; see {self.log}")

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
