"""Engines that end or stop in the middle, for tests of what follows."""

import os
import signal
import subprocess
import threading
from http.client import HTTPConnection
from pathlib import Path

from oblr.rollout import client
from oblr.rollout.hf import HFEngine
from oblr.rollout.server import ServerEngine

#: A request has been sent, and its answer is awaited.
awaited = threading.Event()


class Awaiting(HTTPConnection):
    def getresponse(self):
        awaited.set()
        return super().getresponse()


class StallingHF(HFEngine):
    """Does the first part of its work, and then says that it does nothing more."""

    calls = 0

    def generate(self, *given, **told):
        self.calls += 1
        if self.calls == 2:
            Path(os.environ["STALLED"]).touch()
            signal.pause()
        return super().generate(*given, **told)


class LastServer(ServerEngine):
    """Its run is killed in the midst of its fourth batch."""

    def generate(self, prompts, sampling, seeds, done=None):
        if self.weight_version == 3 and sampling.n > 1:
            super().generate(prompts[:1], sampling, seeds[:1])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().generate(prompts, sampling, seeds, done)


class MortalServer(ServerEngine):
    calls = 0

    def generate(self, prompts, sampling, seeds, done=None):
        self.calls += 1
        if self.calls != 2:
            return super().generate(prompts, sampling, seeds, done)
        super().generate(prompts[:1], sampling, seeds[:1])
        group = str(self.process.process.pid)
        (self.log.parent / "group").write_text(group)
        find = subprocess.run(["pgrep", "-g", group, "-f", "VLLM::Worker"], capture_output=True, text=True)
        worker = int(find.stdout.split()[-1])
        os.kill(worker, signal.SIGSTOP)  # what has been sampled by now is all that there will be
        client.HTTPConnection = Awaiting
        threading.Thread(target=lambda: awaited.wait() and os.kill(worker, signal.SIGKILL)).start()
        try:
            return super().generate(prompts, sampling, seeds, done)
        finally:
            client.HTTPConnection = HTTPConnection


class LastPaused(ServerEngine):
    """Its run is killed while the server gets its third weights, in the midst of responses."""

    def _send(self, weights, version):
        super()._send(weights, version)
        if version == "3":
            os.kill(os.getpid(), signal.SIGKILL)


class PausedServer(ServerEngine):
    """Is killed while it gets its third weights for the first time."""

    killed = False

    def _send(self, weights, version):
        super()._send(weights, version)
        if version == "3" and not self.killed:
            self.killed = True
            os.killpg(self.process.process.pid, signal.SIGKILL)
