"""The responses of one call to a pool, scored as they come: all at once, or each as soon as it has ended."""

import hashlib
import math
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, TypeAlias

from oblr.errors import RunError
from oblr.problem import Completion, Problem, Sealed
from oblr.rewards.slots import TOGETHER, Slot
from oblr.rewards.verdicts import NONE, Result, Verdict

if TYPE_CHECKING:
    from oblr.rewards.pool import RewardPool

#: Processes in which a response is scored before the run gives up: all but the last were killed from outside.
TRIES = 3
#: A question, the text of a response to it, and that response.
Response: TypeAlias = tuple[Problem, str, Completion]


class Scoring:
    """Scores in the thread that calls :meth:`run`; the other methods may be called from any.

    Args:
        pool: whose processes score; nobody else uses them meanwhile.
        read: the response that a completion at a place is. It is called in :meth:`run`.
    """

    def __init__(self, pool: "RewardPool", read: Callable[[int, Completion], Response]):
        self.pool, self.read = pool, read
        self.come = deque[tuple[int, Completion]]()  # and not looked at yet
        self.whole = self.ending = self.given_up = False
        self.heard, self.bell = os.pipe()
        os.set_blocking(self.bell, False)
        #: by place: the latest completion there, what it is, and what its verdict is known by
        self.at: dict[int, tuple[Completion, Response, Hashable]] = {}
        self.remembered: dict[Hashable, Verdict] = {}
        #: what is scored: number by key, and by number the pickled response and whether it has a process of its own
        self.jobs: dict[Hashable, int] = {}
        self.pickled, self.alone = list[bytes](), list[bool]()
        self.waiting, self.results, self.deaths = deque[int](), dict[int, Result](), dict[int, int]()
        self.starts = 0  # of processes that came to nothing, in a row
        self.since = time.monotonic()
        self.running = Future[None]()  # where a thread of its own calls `run`

    def close(self) -> None:
        """Release what this holds, when nobody calls anything here any more."""
        os.close(self.bell)
        os.close(self.heard)

    def add(self, place: int, completion: Completion) -> None:
        """One has ended. Another at the same place takes the place of the first, if it is not the same."""
        self.come.append((place, completion))
        self._ring()

    def end(self, completions: Sequence[Completion]) -> None:
        """These are all: what else has been added counts for nothing."""
        self.come.extend(enumerate(completions))
        self.whole = True
        self._ring()

    def give_up(self) -> None:
        """:meth:`run` ends soon, and the pool's processes with it."""
        self.given_up = True
        self._ring()

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it rings already
            os.write(self.bell, b".")

    def run(self) -> None:
        """Score until :meth:`end` has been called and everything has a verdict.

        Raises:
            SettingError, RunError: as :meth:`~oblr.rewards.pool.RewardPool.score`.
        """
        pool = self.pool
        try:
            self._look()
            while not self.given_up and (not self.ending or self.waiting or pool.busy):
                self._give()
                self._hear()
                self._look()
        except BaseException:
            pool.close()  # answers to what was asked would be taken for answers to what is asked next
            raise
        if self.given_up:
            pool.close()

    def scored(self, completions: Sequence[Completion]) -> list[tuple[Response, Verdict]]:
        """Responses and verdicts of these completions, in order, where another thread runs; failures are counted.

        What has been added and is one of them is not scored again.

        Raises:
            SettingError, RunError: as :meth:`run`; or another thread has given it up.
        """
        self.end(completions)
        self.running.result()
        if self.given_up:
            raise RunError("the responses are scored no further: the run ends")
        scored = self.verdicts()
        self.pool.count(scored)
        return scored

    def verdicts(self) -> list[tuple[Response, Verdict]]:
        """Responses and verdicts of what :meth:`end` was given, in order, once :meth:`run` is through."""
        found = dict(self.remembered)
        for key, job in self.jobs.items():
            if (one := self.results.get(job)) is not None:
                found[key] = Verdict(one.score.value, one.outcome, one.score.parts, one.problem)
        self.pool.remember(found)
        return [(self.at[place][1], found[self.at[place][2]]) for place in range(len(self.at))]

    def _look(self) -> None:
        """Take in what has come: first those that share a process, which ends where another has one of its own."""
        whole, new = self.whole, len(self.jobs)
        while self.come:
            place, completion = self.come.popleft()
            if place not in self.at or self.at[place][0] != completion:
                self._take_in(place, completion)
        if len(self.jobs) > new:
            self.waiting = deque(sorted(self.waiting, key=self.alone.__getitem__))
        if whole and not self.ending:
            self.ending = True
            wanted = {self.jobs.get(key) for *_, key in self.at.values()}
            self.waiting = deque(job for job in self.waiting if job in wanted)

    def _take_in(self, place: int, completion: Completion) -> None:
        pool, response = self.pool, self.read(place, completion)
        key: Hashable = len(self.pickled)
        if pool.key and not isinstance(response[0], Sealed):
            key = _digest(pool.key(*response))
        self.at[place] = completion, response, key
        if key in self.jobs or key in self.remembered:
            return
        if key in pool.cache:
            self.remembered[key] = pool.cache[key]
            return
        self.jobs[key] = job = len(self.pickled)
        self.alone.append(pool.alone(*response))
        self.pickled.append(pickle.dumps(response))
        self.waiting.append(job)

    def _give(self) -> None:
        """Idle processes get what waits."""
        if not self.waiting:
            return
        self.pool.start()
        for slot in self.pool.slots:
            if slot.idle and self.waiting:
                share = max(1, min(TOGETHER, len(self.waiting) // (2 * self.pool.workers)))
                slot.give([self.waiting.popleft() for _ in range(share)], self.pickled, self.alone)

    def _hear(self) -> None:
        """Wait for an answer, for what is new, or until another process is worth its start, which it then gets."""
        pool = self.pool
        short = pool.short_of(self.since)
        self.since = time.monotonic()
        if self.waiting and short <= 0:
            pool.add_process()
            short = math.inf
        busy = pool.busy
        sources: list[Connection | int] = [self.heard, *(slot.connection for slot in pool.slots)]
        ready = wait(sources, short if self.waiting and short < math.inf else None)
        if self.heard in ready:
            os.read(self.heard, 65_536)
        if not busy:  # this was no work
            self.since = time.monotonic()
        for place, slot in enumerate(pool.slots):
            if slot.connection in ready:
                self._take(place, slot)

    def _take(self, place: int, slot: Slot) -> None:
        """Take the answer of a process, or put another in the place of one that has ended."""
        asked = slot.asked
        try:
            found = slot.take()
        except (EOFError, OSError):  # it was killed, or never came to be
            self.starts += not slot.loaded
            found = [Result(NONE, "killed", "its worker was killed")] if asked else []
            slot.close()
            if self.starts > 2 * self.pool.workers:
                raise RunError("the processes that score rewards ended (is the machine out of memory?)") from None
            self.pool.replace_process(place)
        else:
            self.starts = 0
        for job, one in zip(asked, found, strict=False):
            if one.outcome != "killed":
                self.results[job] = one
                continue
            self.deaths[job] = self.deaths.get(job, 0) + 1
            if self.deaths[job] == TRIES:
                raise RunError(
                    f"the processes that score rewards are killed from outside, {TRIES} times with one response"
                    f" (is the machine out of memory?): {one.problem}"
                )
            self.waiting.append(job)
        self.waiting.extendleft(reversed(asked[len(found) :]))


def _digest(key: Hashable) -> bytes:
    """Keys hold answers, and those can be long."""
    return hashlib.blake2b(repr(key).encode(errors="backslashreplace"), digest_size=16).digest()
