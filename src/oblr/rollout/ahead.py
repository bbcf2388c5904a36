"""Batches of steps to come, which the engine samples and rewards score while the policy trains on others.

One thread asks the engine, batch after batch, and one has their responses scored as they end; the next batch is sampled
while the last responses of the one before are still scored. With ``rollout.in_flight`` several threads ask, so that the
next batch takes the place of responses that have ended. None asks another rank for anything: what fails is raised where
the batch is taken, which all ranks do in the same order.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeAlias

from oblr.batch.types import RolloutBatch
from oblr.problem import Completion
from oblr.rollout.drawing import Drawn
from oblr.rollout.engine import Done
from oblr.rollout.refill import Others
from oblr.rollout.versions import check_versions

Groups: TypeAlias = list[list[Completion]]
#: Seconds between attempts to end what is under way.
TICK = 0.1


class Told:
    """Responses that a thread of its own asks for, and another thread hears as they end.

    Attributes:
        seconds: that all took, once they have ended.
    """

    def __init__(self, thread: ThreadPoolExecutor, ask: Callable[[Done], Groups]):
        self.ended: SimpleQueue[tuple[int, int, Completion] | None] = SimpleQueue()
        self.seconds = 0.0

        def asked() -> Groups:
            start = time.perf_counter()
            groups = ask(lambda *one: self.ended.put(one))
            self.seconds = time.perf_counter() - start
            return groups

        self.groups = thread.submit(asked)
        self.groups.add_done_callback(lambda _: self.ended.put(None))  # of one that is cancelled, too

    def heard(self, done: Done) -> Groups:
        """All responses, when the last has ended; ``done`` is told of each as it ends."""
        while (one := self.ended.get()) is not None:
            done(*one)
        return self.groups.result()


@dataclass(frozen=True)
class UnderWay:
    """A batch that is sampled and scored.

    Attributes:
        refills: what takes the place of its groups that agree, time after time.
    """

    drawn: Drawn
    told: Mapping[str, Told]
    batch: Future[RolloutBatch]
    refills: "list[tuple[Others, UnderWay]]" = field(default_factory=list)

    @property
    def parts(self) -> "list[UnderWay]":
        return [self, *(one for _, one in self.refills)]

    @property
    def asked(self) -> list[Future[Groups]]:
        """The engine's answers to all that it is asked for."""
        return [told.groups for one in self.parts for told in one.told.values()]

    @property
    def futures(self) -> list[Future[Any]]:
        return [*self.asked, *(one.batch for one in self.parts)]

    def result(self, newest: int) -> RolloutBatch:
        """The batch, with others in the place of groups that agree, once it is scored.

        Raises:
            EngineDiedError: tokens are of older weights than those that they were asked of, or newer than ``newest``.
        """
        for one in self.parts:
            for told in one.told.values():
                check_versions(told.groups.result(), one.batch.result().weight_version, newest)
        batch = self.batch.result()
        for others, one in self.refills:
            batch = batch.refilled_with(one.batch.result(), others.places, others.replaced)
        return batch


class Upcoming:
    """The batches under way, first the one that is due first.

    Args:
        at_once: of how many the engine is asked at a time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self.batches = deque[UnderWay]()
        self.sampler, self.scorer = ThreadPoolExecutor(at_once, "sampler"), ThreadPoolExecutor(1, "scorer")

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def end(self) -> int:
        """Position of the training problem after all that are under way; 0 if none is."""
        return max((part.drawn.end for one in self.batches for part in one.parts), default=0)

    def start(
        self,
        drawn: Drawn,
        asks: Mapping[str, Callable[[Done], Groups]],
        made: Callable[[Mapping[str, Told]], RolloutBatch],
    ) -> UnderWay:
        """Sample what ``asks`` ask for, one after the other, and have a batch ``made`` of it meanwhile."""
        told = {use: Told(self.sampler, one) for use, one in asks.items()}
        return UnderWay(drawn, told, self.scorer.submit(made, told))

    def settle(self) -> None:
        """Wait until the engine is asked for nothing any more, whatever has come of it."""
        wait([future for one in self.batches for future in one.asked])

    def finish(self) -> None:
        """Wait until all is scored too, so that nobody waits for rewards which another batch keeps to itself."""
        wait([future for one in self.batches for future in one.futures])

    def drop(self, end: Callable[[], object]) -> None:
        """Forget all, once none is sampled or scored any more; until then ``end`` is called again and again."""
        futures = [future for one in self.batches for future in one.futures]
        for future in reversed(futures):  # else the next would begin where one is cancelled
            future.cancel()
        while not all(future.done() for future in futures):
            end()
            wait(futures, TICK)
        self.batches.clear()
