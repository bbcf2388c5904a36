"""A server whose processes are killed in the midst of a generation, for tests of what follows."""

import os
import signal
import subprocess
import threading
import time

from oblr.rollout.server import ServerEngine

#: which process of the server dies in which call of `generate`
VICTIMS = {2: "VLLM::Worker", 3: "api_server"}


class MortalServer(ServerEngine):
    calls = 0

    def generate(self, prompts, sampling, seed):
        self.calls += 1
        if self.calls in VICTIMS and self.process is not None:
            threading.Thread(target=self.kill, args=(VICTIMS[self.calls],)).start()
        return super().generate(prompts, sampling, seed)

    def kill(self, name):
        with (self.log.parent / "groups").open("a") as file:
            print(self.process.process.pid, file=file)
        time.sleep(0.1)
        os.kill(self.find("VLLM::Worker"), signal.SIGSTOP)  # what has been sampled by now is all that there will be
        time.sleep(0.2)
        os.kill(self.find(name), signal.SIGKILL)

    def find(self, name):
        group = str(self.process.process.pid)
        return int(
            subprocess.run(["pgrep", "-g", group, "-f", name], capture_output=True, text=True).stdout.split()[-1]
        )
