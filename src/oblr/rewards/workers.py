"""The processes that score: one keeper, which the run starts with :func:`main`, and its workers.

The keeper is a new program with a single thread, so it can fork: a worker that is killed is replaced in milliseconds,
with everything that the reward imports already there, while the run that asked for it may be full of threads, engines
and devices. It ends when its connection to the run does, however the run ends, and its workers end with it. Each
worker has a connection of its own: nothing that one does, or suffers while it idles, stops the others. (A pool of
pebble's, whose workers share a queue, is lost when an idle worker is killed, as by a machine out of memory.)
"""

import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Literal, NamedTuple

from oblr.rewards.base import Reward, Score, name, score
from oblr.run.processes import die_with_parent

Outcome = Literal["scored", "timeout", "error"]
NONE = Score(0.0, {})


class Result(NamedTuple):
    """``problem`` is what went wrong, "" where nothing did; a response can be scored all the same."""

    score: Score
    outcome: Outcome
    problem: str = ""


@dataclass(frozen=True)
class Order:
    """What the run sends first.

    Attributes:
        reward: pickled.
        workers: how many.
        timeout: seconds per response.
        memory: bytes that a worker may take beyond what it starts with.
    """

    reward: bytes
    workers: int
    timeout: float
    memory: int


class Worker:
    """A forked process that scores one response at a time."""

    def __init__(self, reward: Reward, order: Order):
        self.limit, self.item, self.name = order.timeout, -1, name(reward)
        self.connection, theirs = Pipe()
        self.process = get_context("fork").Process(
            target=_work, args=(theirs, reward, order.memory, os.getpid()), daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, index: int, response: bytes) -> None:
        """Let it score the pickled arguments of the reward."""
        self.item, self.deadline = index, time.monotonic() + self.limit
        self.connection.send_bytes(response)

    def take(self) -> Result:
        """What it found, or that it died of it."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.end()
            code = self.process.exitcode or 0
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}, as by os._exit"
            return Result(NONE, "error", f"the process of {self.name} ended {how}")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _work(connection: Connection, reward: Reward, memory: int, parent: int) -> None:
    die_with_parent(parent)
    own = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (own + memory, own + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    failures: list[str] = []  # of threads that the reward has started
    threading.excepthook = lambda failure: failures.append(f"{failure.exc_value!r:.200}")
    while True:
        response = connection.recv_bytes()
        try:
            result = Result(score(reward, *pickle.loads(response)), "scored")
        except Exception as error:
            result = Result(NONE, "error", str(error))
        if failures and not result.problem:
            result = result._replace(problem=f"a thread of {name(reward)} raised {failures.pop()}")
        connection.send(result)


class Keeper:
    """Hands responses to workers, and replaces those that hang or die.

    Args:
        run: connection to the run.
    """

    def __init__(self, run: Connection, reward: Reward, order: Order):
        self.run, self.reward, self.order = run, reward, order
        self.workers = [Worker(reward, order) for _ in range(order.workers)]

    def score(self, responses: Sequence[bytes]) -> list[Result]:
        """In the order of ``responses``."""
        results: dict[int, Result] = {}
        waiting = deque(enumerate(responses))
        while len(results) < len(responses):
            for place, worker in enumerate(self.workers):
                if worker.item < 0 and waiting:
                    self._give(place, *waiting.popleft())
            busy = {worker.connection: place for place, worker in enumerate(self.workers) if worker.item >= 0}
            now, first = time.monotonic(), min(self.workers[place].deadline for place in busy.values())
            ready = wait([*busy, self.run], max(first - now, 0.0))
            if self.run in ready:  # it says nothing while it waits: it has ended
                raise EOFError
            for connection, place in busy.items():
                worker = self.workers[place]
                if connection in ready:
                    results[worker.item] = worker.take()
                elif time.monotonic() >= worker.deadline:
                    worker.end()
                    results[worker.item] = Result(NONE, "timeout", f"no reward within {self.order.timeout:g} s")
                else:
                    continue
                worker.item = -1
                if worker.connection.closed:
                    self.workers[place] = Worker(self.reward, self.order)
        return [results[index] for index in range(len(responses))]

    def _give(self, place: int, index: int, response: bytes) -> None:
        try:
            self.workers[place].give(index, response)
        except OSError:  # somebody killed it while it was idle
            self.workers[place].end()
            self.workers[place] = Worker(self.reward, self.order)
            self.workers[place].give(index, response)


def main() -> None:
    """The keeper's life; its argument is the file descriptor of its connection to the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when it ends
    run = Connection(int(sys.argv[1]))
    try:
        order: Order = run.recv()
        try:
            reward = pickle.loads(order.reward)
            if hasattr(reward, "warm_up"):
                reward.warm_up()
        except BaseException as error:  # sys.exit at the end of its module, for one
            run.send(repr(error))
            return
        run.send(None)
        keeper = Keeper(run, reward, order)
        while True:
            run.send(keeper.score(run.recv()))
    except (EOFError, OSError):
        os._exit(0)
