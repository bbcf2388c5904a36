"""A server whose worker is killed in the midst of a generation, for a test of what follows."""

import os
import signal
import subprocess
import threading
import time

from oblr.rollout.server import ServerEngine


class MortalServer(ServerEngine):
    calls = 0

    def generate(self, prompts, sampling, seeds):
        self.calls += 1
        if self.calls == 2:
            threading.Thread(target=self.kill).start()
        return super().generate(prompts, sampling, seeds)

    def kill(self):
        group = str(self.process.process.pid)
        (self.log.parent / "group").write_text(group)
        time.sleep(0.1)
        find = subprocess.run(["pgrep", "-g", group, "-f", "VLLM::Worker"], capture_output=True, text=True)
        worker = int(find.stdout.split()[-1])
        os.kill(worker, signal.SIGSTOP)  # what has been sampled by now is all that there will be
        time.sleep(0.2)
        os.kill(worker, signal.SIGKILL)
