"""Several servers as one engine: each samples what it has time for, and one that dies is left out until it is back.

Each is a :class:`~oblr.rollout.server.ServerEngine` with a copy of the policy. Requests have seeds of their own, so it
does not matter which server answers one, but for rounding.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

from torch import Tensor

from oblr.batch.types import Sampling
from oblr.errors import EngineDiedError, SettingError
from oblr.kinds import Word, checked
from oblr.problem import Completion
from oblr.rollout.engine import Done, check_fresh
from oblr.rollout.readback import Block, Part
from oblr.rollout.server import ServerEngine
from oblr.run.ranks import of_run

log = logging.getLogger(__name__)
#: Requests that a server is asked at once, and into how many parts a step's prompts are cut for each of them.
AT_ONCE, PARTS = 2, 4

Item = tuple[str, Tensor]


@checked("rollout.engines.servers")
class ServersEngine:
    """Samples from several vLLM servers that run already.

    Prompts are handed out a few at a time, so that a server gets as many as it has time for. Where one dies, others
    sample what it was asked; it is looked for again whenever there are new weights. The engine dies with the last.

    Args:
        urls: of the servers, each as ``rollout.engines.server.url``.
        server: makes the engine of one, given its ``url``.

    Raises:
        SettingError: a server is not there, or not what this run can use; there are fewer than two, or one twice.
    """

    apart, in_flight = True, False

    def __init__(self, urls: Sequence[Word], server: Callable[..., ServerEngine]):
        if len(set(urls)) != len(urls) or len(urls) < 2:
            raise SettingError(
                "rollout.engines.servers.urls",
                f"{list(urls)} are not several servers",
                "name two or more, each once; or use rollout.engine=server",
            )
        self.servers = [server(url=url) for url in urls]
        self.dtype = self.servers[0].dtype
        self.weight_version: int | None = None
        self.living: list[ServerEngine] = []
        self.leaving = threading.Lock()

    def start(self) -> None:
        """Start with the servers that answer; where none does, wait for one after the other. Collective."""
        self.weight_version, self.living = None, []
        there = of_run().objects([k for k, one in enumerate(self.servers) if one.answers()])[0]
        deaths = []
        for k in there or range(len(self.servers)):
            if (death := self._started(self.servers[k])) is None:
                self.living.append(self.servers[k])
            else:
                deaths.append(death)
        if not self.living:
            raise deaths[0]

    def _started(self, one: ServerEngine) -> EngineDiedError | None:
        """Why it has not; all ranks are told the same."""
        one.in_flight = self.in_flight
        try:
            one.start()
        except EngineDiedError as death:
            log.warning("a rollout server is left out: %s", death)
            return death
        return None

    def sync(self, weights: Iterable[Item], version: int) -> None:
        """Send the weights to servers that live and to those that are back; which, the first rank says. Collective."""
        if not self.in_flight:
            self.weight_version = None
        lost = [k for k, one in enumerate(self.servers) if one not in self.living]
        back = [k for k in lost if self.servers[k].answers()]
        lost, back = of_run().objects((lost, back))[0]  # another rank may have met other deaths
        living = [one for k, one in enumerate(self.servers) if k not in lost]
        for k in back:
            if self._started(self.servers[k]) is None:
                log.warning("the rollout server at %s is back", self.servers[k].server.url)
                living.append(self.servers[k])
        deaths = Broadcast([_sync(one, version) for one in living]).send(weights)
        failed = {k: str(death) for k, death in enumerate(deaths) if death is not None}
        failed = of_run().objects(failed)[0]
        self.living = list(living)  # before, those that are back have no weights
        self._leave_out([(living[k], why) for k, why in failed.items()])
        self.weight_version = version

    def _leave_out(self, dead: Sequence[tuple[ServerEngine, str]]) -> None:
        for one, why in dead:
            with self.leaving:
                leaves = one in self.living
                if leaves:
                    self.living.remove(one)
            if leaves:
                log.warning("a rollout server is left out: %s", why)
                if self.in_flight:
                    one.server.give_up(why)  # it may be paused: what it is asked, others sample
        if dead and not self.living:
            raise EngineDiedError(dead[-1][1])

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Completion]]:
        check_fresh(self)
        found: list[list[Completion]] = [[] for _ in prompts]
        left = Left(len(prompts), AT_ONCE * PARTS * max(1, len(self.living)))

        def work(one: ServerEngine) -> EngineDiedError | None:
            for part in left.parts():
                if one not in self.living:  # another thread has left it out
                    left.back(part)
                    return None
                told = None if done is None else _of_part(done, part.start)
                try:
                    found[part] = one.generate(prompts[part], sampling, seeds[part], told)
                except EngineDiedError as death:
                    left.back(part)
                    return death
                except BaseException:
                    left.end()
                    raise
                left.through(part)
            return None

        while left.count:  # a server may die when others have nothing left to do
            living = list(self.living)
            if not living:
                raise EngineDiedError("no rollout server is left")
            with ThreadPoolExecutor(AT_ONCE * len(living)) as pool:
                at_work = [(one, pool.submit(work, one)) for one in living for _ in range(AT_ONCE)]
            self._leave_out([(one, str(death)) for one, of_one in at_work if (death := of_one.result()) is not None])
        return found

    def read(self, blocks: Sequence[Block]) -> list[list[Part]]:
        found, dead = [], []
        for one in self.living:
            try:
                found += one.read(blocks)
            except EngineDiedError as death:
                dead.append((one, str(death)))
        self._leave_out(dead)
        return found

    def sleep(self) -> None:
        """Their memory is not the trainer's."""

    def close(self) -> None:
        for one in self.servers:
            one.close()


def _sync(one: ServerEngine, version: int) -> Callable[[Iterable[Item]], None]:
    return lambda weights: one.sync(weights, version)


def _of_part(done: Done, first: int) -> Done:
    """``done`` for prompts of which ``first`` is the first one's place among all."""
    return lambda query, j, completion: done(first + query, j, completion)


class Left:
    """Parts of a step's prompts that are not sampled yet, which several threads take.

    Args:
        count: of prompts.
        parts: how many, about.
    """

    def __init__(self, count: int, parts: int):
        size = max(1, -(-count // parts))
        self.waiting = deque(slice(start, min(start + size, count)) for start in range(0, count, size))
        self.count, self.ended = len(self.waiting), False
        self.changed = threading.Condition()

    def parts(self) -> Iterator[slice]:
        """One after the other, until all are through: what another thread gives back comes again."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or not self.count or self.ended)
                if self.ended or not self.waiting:
                    return
                part = self.waiting.popleft()
            yield part

    def through(self, part: slice) -> None:
        with self.changed:
            self.count -= 1
            self.changed.notify_all()

    def back(self, part: slice) -> None:
        with self.changed:
            self.waiting.appendleft(part)
            self.changed.notify_all()

    def end(self) -> None:
        """Nothing more is to be taken."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Broadcast:
    """Weights that are gone through once, in this thread, and go to several takers at the pace of the slowest.

    Args:
        takers: each goes through all that it is given.
    """

    def __init__(self, takers: Sequence[Callable[[Iterable[Item]], None]]):
        self.takers = takers
        self.queues: list[Queue[Item | BaseException | None]] = [Queue(1) for _ in takers]

    def send(self, weights: Iterable[Item]) -> list[EngineDiedError | None]:
        """Why each has failed, if it has. What ends the weights before their time ends all."""
        with ThreadPoolExecutor(max(1, len(self.takers))) as pool:
            at_work = [pool.submit(self._take, *pair) for pair in zip(self.takers, self.queues, strict=True)]
            try:
                for item in weights:
                    self._put(item)
            except BaseException as error:
                self._put(error)
                raise
            self._put(None)
            return [one.result() for one in at_work]

    def _put(self, item: Item | BaseException | None) -> None:
        for queue in self.queues:
            queue.put(item)

    def _take(
        self, taker: Callable[[Iterable[Item]], None], queue: Queue[Item | BaseException | None]
    ) -> EngineDiedError | None:
        items = _items(queue)
        try:
            taker(items)
            return None
        except EngineDiedError as death:
            return death
        finally:
            for _ in items:  # what it has not taken
                pass


def _items(queue: Queue[Item | BaseException | None]) -> Iterator[Item]:
    while (item := queue.get()) is not None:
        if isinstance(item, BaseException):
            raise EngineDiedError("the weights did not come to their end")
        yield item
