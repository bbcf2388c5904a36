"""Rewards in processes of their own, where they can neither hang the run, nor take its memory, nor reach its files."""

import logging
import math
import os
import pickle
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property

from oblr.errors import SettingError
from oblr.kinds import Few, Given, Positive, Word, checked
from oblr.problem import Completion, Problem
from oblr.rewards.base import Reward, name
from oblr.rewards.confinement import LEVELS, TRUSTED, WORDS, Level, best, confinement
from oblr.rewards.evaluating import evaluates, ours
from oblr.rewards.printed import printed
from oblr.rewards.scoring import Response, Scoring
from oblr.rewards.slots import Slot, unsendable
from oblr.rewards.verdicts import Verdict
from oblr.rewards.workers import Order

log = logging.getLogger(__name__)
#: Verdicts that are remembered.
REMEMBERED = 65_536
#: Processes where nobody says how many.
MOST = 32


@checked("rollout.reward_pool")
class RewardPool:
    """Scores responses in confined processes, each response within a time limit and a memory limit.

    What a process can reach is what :mod:`oblr.rewards.confinement` leaves it. A process that exceeds a limit is
    replaced, as is one that dies; the response gets 0 and is counted. Of each kind of failure the first is a warning.
    A response is seen whole, however long it is. Where the reward runs text as code
    (:func:`~oblr.rewards.evaluating.evaluates`), each response has a process of its own, which no other response
    has been in, unless it is :func:`~oblr.rewards.evaluating.inert`.

    A process that is killed from outside, as by a machine out of memory, says nothing of the response: that is scored
    again, in three processes at most. Then the run ends, and can be resumed. To go on with 0 would teach the policy
    what the machine did; to go on without the response would leave out what the machine dislikes, as long ones.

    Rewards that have a ``key(problem, text, completion)`` say by it what their verdict depends on: responses that share
    it are scored once, and the last ``REMEMBERED`` verdicts are kept.

    Works from any thread, next to any engine: the processes are started, not forked, and use no signals. They start
    with the first call, or with :meth:`start`, which does not wait for them.

    Args:
        reward: what scores a response; must be picklable.
        workers: processes, at most; None: as many as this rank has cores, and :data:`MOST` at most.
        timeout: for one response, which then gets 0, seconds.
        memory_gib: what a process may take beyond what the reward takes when it is loaded, GiB.
        readable: files and folders that the reward reads, besides code.
        trust: whether the reward has the run's own rights, network and files: then a response may have them as well.
        level: of confinement; None: the best that works here.

    Attributes:
        ranks: how many on this machine share its cores.
        timeouts, errors: responses so far that took too long, or whose scoring failed.

    Raises:
        SettingError: nothing readable there, or a reward that cannot be sent to another process.
    """

    def __init__(
        self,
        reward: Reward,
        workers: Few | None = None,
        timeout: Positive = 5.0,
        memory_gib: Positive = 1.0,
        readable: Sequence[Word] = (),
        trust: bool = False,
        level: Given[Level | None] = None,
    ):
        for path in readable:
            if not os.path.exists(path):
                raise SettingError("rollout.reward_pool.readable", f"there is no {path}", "name what is there")
        try:
            self.pickled = pickle.dumps(reward)
        except Exception as error:
            raise unsendable(repr(error)) from error
        self.reward, self.given_workers, self.ranks = reward, workers, 1
        self.timeout, self.memory = timeout, int(memory_gib * 2**30)
        self.readable, self.trust, self.chosen = readable, trust, level
        self.key, self.inert = getattr(reward, "key", None), getattr(reward, "inert", None)
        self.timeouts = self.errors = 0
        self.cache: OrderedDict[Hashable, Verdict] = OrderedDict()
        self.lock, self.warned = threading.Lock(), set[str]()
        #: what :meth:`scoring` is at, and who may look at that
        self.open: Scoring | None = None
        self.opening = threading.Lock()
        self.slots: list[Slot] = []
        self.worked = 0.0  # seconds since the last process was added
        self.scratch = ""

    @property
    def workers(self) -> int:
        """Processes, at most."""
        return self.given_workers or max(1, min(MOST, cores() // self.ranks))

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
        self.add_process()

    def add_process(self) -> None:
        """Start another, without waiting for it."""
        self.slots.append(self._slot(len(self.slots)))
        self.worked = 0.0

    def replace_process(self, place: int) -> None:
        """Start one in the place of another that has ended."""
        self.slots[place] = self._slot(place)

    def _slot(self, place: int) -> Slot:
        with printed() as out:
            return Slot(self._order(place), out)

    @property
    def busy(self) -> bool:
        """Whether a process has been given what it has not answered."""
        return any(slot.asked for slot in self.slots)

    def short_of(self, since: float) -> float:
        """Seconds until another process is worth its start: all have scored as long as the first one took to load.

        Args:
            since: what they have worked from, up to now; what they worked before that is known.
        """
        if not self.slots or not self.slots[0].loaded or len(self.slots) >= self.workers:
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
            scored = self._at_once(problems, texts, completions)
            self.count(scored)
        return [verdict for _, verdict in scored]

    def probe(
        self, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
    ) -> list[Verdict]:
        """As :meth:`score`, of responses that no policy has given: their failures are the caller's to tell."""
        with self.lock:
            return [verdict for _, verdict in self._at_once(problems, texts, completions)]

    @contextmanager
    def scoring(self, read: Callable[[int, Completion], Response]) -> Iterator[Scoring]:
        """Score responses as they end, in a thread of its own, while somebody else makes others.

        Where this is left before all have been scored, as by an exception, the processes end. Nobody else can have
        anything scored meanwhile.

        Args:
            read: the response that a completion at a place is; called in that thread.
        """
        with self.lock, closing(Scoring(self, read)) as scoring, ThreadPoolExecutor(1, "rewards") as thread:
            scoring.running = thread.submit(scoring.run)
            self.open = scoring
            try:
                yield scoring
            finally:
                with self.opening:
                    self.open = None
                scoring.give_up()

    def give_up(self) -> None:
        """Whoever waits in another thread for what :meth:`scoring` scores waits no longer; the processes end."""
        with self.opening:
            if self.open is not None:
                self.open.give_up()

    def _at_once(
        self, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
    ) -> list[tuple[Response, Verdict]]:
        responses = list(zip(problems, texts, completions, strict=True))
        with closing(Scoring(self, lambda place, _: responses[place])) as scoring:
            scoring.end(completions)
            scoring.run()
            return scoring.verdicts()

    def count(self, scored: Sequence[tuple[Response, Verdict]]) -> None:
        """Failures among these, of each kind the first in a warning."""
        for (problem, *_), verdict in scored:
            self.timeouts += verdict.outcome == "timeout"
            self.errors += verdict.outcome == "error"
            self._warn(problem, verdict)

    def alone(self, problem: Problem, text: str, completion: Completion) -> bool:
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

    def remember(self, verdicts: dict[Hashable, Verdict]) -> None:
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


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
