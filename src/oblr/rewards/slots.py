"""A process that scores, as the run sees it."""

import json
import math
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Pipe

from oblr.errors import SettingError
from oblr.rewards.verdicts import LONGEST, NONE, Result, result
from oblr.rewards.workers import Order

WORKER = "from oblr.rewards.workers import main; main()"
#: Responses that a worker is given at once, at most.
TOGETHER = 256


class Slot:
    """A worker as the run sees it: see :mod:`oblr.rewards.workers`."""

    def __init__(self, order: Order, out: int):
        self.connection, theirs = Pipe()
        python = [sys.executable, "-P", "-c", WORKER, str(theirs.fileno())]
        self.process = subprocess.Popen(
            order.confinement.command(python),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=order.confinement.environment(),
            start_new_session=True,  # Ctrl-C is for the run
        )
        theirs.close()
        self.started, self.loading = time.monotonic(), math.inf  # seconds that it took to load the reward
        self.loaded, self.asked = False, list[int]()
        with suppress(OSError):  # it has ended; who waits for its first word will know
            self.connection.send_bytes(pickle.dumps(order))

    @property
    def idle(self) -> bool:
        return self.loaded and not self.asked

    def give(self, places: list[int], responses: list[bytes], alone: list[bool]) -> None:
        self.asked = places
        with suppress(OSError):  # as above
            self.connection.send_bytes(pickle.dumps([(responses[place], alone[place]) for place in places]))

    def take(self) -> list[Result]:
        """Results of the first responses that it was given.

        Raises:
            SettingError: it cannot load the reward.
            EOFError, OSError: it has ended.
        """
        said = json.loads(self.connection.recv_bytes(TOGETHER * 2 * LONGEST))
        if not self.loaded:
            if said is not None:
                raise unsendable(said)
            self.loaded, self.loading = True, time.monotonic() - self.started
            return []
        self.asked = []
        return [result(one) if isinstance(one, str) else Result(NONE, *one) for one in said]

    def close(self) -> None:
        self.connection.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:  # it is loading a reward that never ends
            self.process.kill()
            self.process.wait()


def unsendable(error: str) -> SettingError:
    return SettingError(
        "reward",
        f"the processes that score cannot load it: {error}",
        "define it at the top of a module that can be imported, with attributes that can be pickled",
    )
