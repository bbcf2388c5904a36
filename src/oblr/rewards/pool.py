"""Rewards in processes of their own, where they can neither hang the run, nor take its memory, nor reach its files."""

import hashlib
import json
import logging
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Pipe, wait

from oblr.errors import RunError, SettingError
from oblr.problem import Completion, Problem, Sealed
from oblr.rewards.base import Reward, name
from oblr.rewards.confinement import LEVELS, TRUSTED, WORDS, Level, best, confinement
from oblr.rewards.evaluating import evaluates, ours
from oblr.rewards.printed import printed
from oblr.rewards.verdicts import LONGEST, NONE, Result, Verdict, result
from oblr.rewards.workers import Order

log = logging.getLogger(__name__)
WORKER = "from oblr.rewards.workers import main; main()"
#: Verdicts that are remembered.
REMEMBERED = 65_536
#: Processes in which a response is scored before the run gives up: all but the last were killed from outside.
TRIES = 3
#: Responses that a worker is given at once, at most.
TOGETHER = 256


class RewardPool:
    """Scores responses in confined processes, each response within a time limit and a memory limit.

    What a process can reach is what :mod:`oblr.rewards.confinement` leaves it. A process that exceeds a limit is
    replaced, as is one that dies; the response gets 0 and is counted. Of each kind of failure the first is a warning.
    A response is seen whole, however long it is. Where the reward runs text as code
    (:func:`~oblr.rewards.evaluating.evaluates`), each response has a process of its own, which no other response
    has been in, unless it is :func:`~oblr.rewards.evaluating.inert`.

    A process that is killed from outside, as by a machine out of memory, says nothing of the response: that is scored
    again, in ``TRIES`` processes at most. Then the run ends, and can be resumed. To go on with 0 would teach the policy
    what the machine did; to go on without the response would leave out what the machine dislikes, as long ones.

    Rewards that have a ``key(problem, text, completion)`` say by it what their verdict depends on: responses that share
    it are scored once, and the last ``REMEMBERED`` verdicts are kept.

    Works from any thread, next to any engine: the processes are started, not forked, and use no signals. They start
    with the first call, or with :meth:`start`, which does not wait for them.

    Args:
        reward: must be picklable.
        workers: processes.
        timeout: seconds per response.
        memory_gib: what a process may take beyond what the reward takes when it is loaded.
        readable: files and folders that the reward reads, besides code.
        trust: whether the reward has the run's own rights, network and files.
        level: of confinement; None: the best that works here.

    Attributes:
        timeouts, errors: responses so far that took too long, or whose scoring failed.

    Raises:
        SettingError: a limit that cannot be kept, or a reward that cannot be sent to another process.
    """

    def __init__(
        self,
        reward: Reward,
        workers: int = 2,
        timeout: float = 5.0,
        memory_gib: float = 1.0,
        readable: Sequence[str] = (),
        trust: bool = False,
        level: Level | None = None,
    ):
        for setting, value in (("workers", workers), ("timeout", timeout), ("memory_gib", memory_gib)):
            if value <= 0:
                raise SettingError(f"rollout.reward_pool.{setting}", f"{value} is not enough", "use a positive number")
        for path in readable:
            if not os.path.exists(path):
                raise SettingError("rollout.reward_pool.readable", f"there is no {path}", "name what is there")
        try:
            self.pickled = pickle.dumps(reward)
        except Exception as error:
            raise _unsendable(repr(error)) from error
        self.reward, self.workers, self.timeout, self.memory = reward, workers, timeout, int(memory_gib * 2**30)
        self.readable, self.trust, self.chosen = readable, trust, level
        self.key, self.inert = getattr(reward, "key", None), getattr(reward, "inert", None)
        self.timeouts = self.errors = 0
        self.cache: OrderedDict[Hashable, Verdict] = OrderedDict()
        self.lock, self.warned = threading.Lock(), set[str]()
        self.slots: list[_Slot] = []
        self.worked = 0.0  # seconds since the last process was added
        self.scratch = ""

    @cached_property
    def level(self) -> Level:
        """How the processes are confined."""
        return LEVELS[-1] if self.trust else self.chosen or best()

    @property
    def words(self) -> str:
        """The same, for the start of a run."""
        return TRUSTED if self.trust else WORDS[self.level]

    def start(self) -> None:
        """Start the first process, without waiting for it; others follow where there is work enough for them."""
        if self.slots:
            return
        if self.level != LEVELS[0]:
            self.scratch = tempfile.mkdtemp(prefix="rewards-")
        self._add()

    def _add(self) -> None:
        with printed() as out:
            self.slots.append(_Slot(self._order(len(self.slots)), out))
        self.worked = 0.0

    def _short_of(self, since: float) -> float:
        """Seconds until another process is worth its start: all have scored as long as the first one took to load."""
        if not self.slots[0].loaded or len(self.slots) == self.workers:
            return math.inf
        first = self.slots[0]
        self.worked += time.monotonic() - max(since, first.started + first.loading)
        return first.loading - self.worked

    def _order(self, place: int) -> Order:
        scratch = os.path.join(self.scratch, str(place)) if self.scratch else ""
        if scratch:
            os.makedirs(scratch, mode=0o700, exist_ok=True)
        held = confinement(self.level, scratch, self.readable, not ours(self.reward), self.trust)
        return Order(self.pickled, self.timeout, self.memory, held, os.getcwd())

    def score(
        self, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
    ) -> list[Verdict]:
        """A verdict per response, in order; failures are counted.

        Raises:
            SettingError: the reward cannot be loaded in another process, or runs text that nothing would confine.
            RunError: the processes end as soon as they are started, or are killed again and again.
        """
        with self.lock:
            verdicts = self._verdicts(problems, texts, completions)
            self.timeouts += sum(verdict.outcome == "timeout" for verdict in verdicts)
            self.errors += sum(verdict.outcome == "error" for verdict in verdicts)
            for problem, verdict in zip(problems, verdicts, strict=True):
                self._warn(problem, verdict)
        return verdicts

    def probe(
        self, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
    ) -> list[Verdict]:
        """As :meth:`score`, of responses that no policy has given: their failures are the caller's to tell."""
        with self.lock:
            return self._verdicts(problems, texts, completions)

    def _verdicts(
        self, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
    ) -> list[Verdict]:
        responses = list(zip(problems, texts, completions, strict=True))
        keys: list[Hashable] = [
            _digest(self.key(*response)) if self.key and not isinstance(response[0], Sealed) else place
            for place, response in enumerate(responses)
        ]
        known = {key: self.cache[key] for key in keys if key in self.cache} if self.key else {}
        new = {key: response for key, response in zip(keys, responses, strict=True) if key not in known}
        alone = [self._alone(*response) for response in new.values()]
        results = self._score([pickle.dumps(response) for response in new.values()], alone) if new else []
        for key, found in zip(new, results, strict=True):
            known[key] = Verdict(found.score.value, found.outcome, found.score.parts, found.problem)
        verdicts = [known[key] for key in keys]
        if self.key:
            self._remember(known)
        return verdicts

    def _alone(self, problem: Problem, text: str, completion: Completion) -> bool:
        """Whether a response may do something as code, and so has a process of its own.

        Raises:
            SettingError: nothing would confine it.
        """
        runner = evaluates(self.reward, problem) if hasattr(self.reward, "evaluates") else self._runner
        if runner and self.level == LEVELS[-1] and not self.trust:
            raise SettingError(
                "reward",
                f"{name(self.reward)} runs what a response says ({runner}), as on problem {problem.id}, and nothing "
                f"here can confine it",
                "install bubblewrap, or a Linux kernel of 6.2 or newer with libseccomp; or say "
                "rollout.reward_pool.trust=true, in an evaluation benchmarks.<name>.trust=true",
            )
        return bool(runner) and not (self.inert and self.inert(text, completion))

    @cached_property
    def _runner(self) -> str:
        return evaluates(self.reward, None)

    def _score(self, responses: list[bytes], alone: list[bool]) -> list[Result]:
        try:
            return self._ask(responses, alone)
        except BaseException:
            self.close()  # answers to what was asked would be taken for answers to what is asked next
            raise

    def _ask(self, responses: list[bytes], alone: list[bool]) -> list[Result]:
        self.start()
        # Those that share a process come first: it ends where another response has one of its own.
        waiting, results = deque(sorted(range(len(responses)), key=alone.__getitem__)), dict[int, Result]()
        deaths = [0] * len(responses)
        starts = 0  # that came to nothing, in a row
        since = time.monotonic()
        while len(results) < len(responses):
            for slot in self.slots:
                if slot.idle and waiting:
                    share = max(1, min(TOGETHER, len(waiting) // (2 * self.workers)))
                    slot.give([waiting.popleft() for _ in range(share)], responses, alone)
            short = self._short_of(since)
            since = time.monotonic()
            if waiting and short <= 0:
                self._add()
                short = math.inf
            ready = wait([slot.connection for slot in self.slots], short if waiting and short < math.inf else None)
            for place, slot in enumerate(self.slots):
                if slot.connection not in ready:
                    continue
                asked = slot.asked
                try:
                    found = slot.take()
                except (EOFError, OSError):  # it was killed, or never came to be
                    starts += not slot.loaded
                    found = [Result(NONE, "killed", "its worker was killed")] if asked else []
                    slot.close()
                    if starts > 2 * self.workers:
                        raise RunError(
                            "the processes that score rewards ended (is the machine out of memory?)"
                        ) from None
                    with printed() as out:
                        self.slots[place] = _Slot(self._order(place), out)
                else:
                    starts = 0
                for index, one in zip(asked, found, strict=False):
                    if one.outcome != "killed":
                        results[index] = one
                        continue
                    deaths[index] += 1
                    if deaths[index] == TRIES:
                        raise RunError(
                            f"the processes that score rewards are killed from outside, {TRIES} times with one response"
                            f" (is the machine out of memory?): {one.problem}"
                        )
                    waiting.append(index)
                waiting.extendleft(reversed(asked[len(found) :]))
        return [results[index] for index in range(len(responses))]

    def _remember(self, verdicts: dict[Hashable, Verdict]) -> None:
        """The last ones that did not depend on the machine's load."""
        for key, verdict in verdicts.items():
            if verdict.outcome == "scored" and isinstance(key, bytes):
                self.cache[key] = verdict
                self.cache.move_to_end(key)
        while len(self.cache) > REMEMBERED:
            self.cache.popitem(last=False)

    def _warn(self, problem: Problem, verdict: Verdict) -> None:
        kind = verdict.problem.partition("(")[0]  # an exception without its arguments
        if kind and kind not in self.warned:
            self.warned.add(kind)
            scored = "" if verdict.outcome == "scored" else f"is scored 0 ({verdict.outcome})"
            log.warning(f"a response to problem {problem.id} {scored or 'has its reward, but'}: {verdict.problem}")

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        for slot in self.slots:
            slot.connection.close()
        for slot in self.slots:
            slot.close()
        self.slots = []
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch = ""


class _Slot:
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
                raise _unsendable(said)
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


def _digest(key: Hashable) -> bytes:
    """Keys hold answers, and those can be long."""
    return hashlib.blake2b(repr(key).encode(errors="backslashreplace"), digest_size=16).digest()


def _unsendable(error: str) -> SettingError:
    return SettingError(
        "reward",
        f"the processes that score cannot load it: {error}",
        "define it at the top of a module that can be imported, with attributes that can be pickled",
    )
