"""Which problems a step is about: the next of a source that are not held out."""

import random
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from oblr.errors import SettingError
from oblr.problem import Problem
from oblr.rewards.tryout import TRIED

#: A training source of at most this many problems is checked whole before the run, a larger one as it goes.
CHECKED = 20_000
#: Seconds in which problems of a larger one are drawn for that.
LOOK = 1.0
#: Training problems in a row that may be held out; a search among endless ones would never end.
PATIENCE = 20_000


class ProblemSource(Protocol):
    """A finite, indexable set of problems. One to train on has its next pass beyond its end."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Problem: ...


@dataclass(frozen=True)
class Drawn:
    """Problems of a step.

    Attributes:
        step: that they are trained in, counted from 0.
        problems: this rank's.
        first: place of the first of these among all ranks'.
        begin, end: positions of training problems, between which are those of all ranks.
    """

    step: int
    problems: list[Problem]
    first: int
    begin: int
    end: int


@dataclass(frozen=True)
class Progress:
    """Which training problems need not be drawn any more.

    Attributes:
        position: all before it.
        beyond: [begin, end) of others, in their order: prompts that were drawn ahead are still to come before these.
    """

    position: int = 0
    beyond: tuple[tuple[int, int], ...] = ()

    def __contains__(self, position: int) -> bool:
        return position < self.position or any(begin <= position < end for begin, end in self.beyond)

    def after(self, drawn: Drawn) -> "Progress":
        """With what was drawn."""
        position, beyond = self.position, list[tuple[int, int]]()
        for begin, end in sorted([*self.beyond, (drawn.begin, drawn.end)]):
            if begin <= position:
                position = max(position, end)
            else:
                beyond.append((begin, end))
        return Progress(position, tuple(beyond))


@dataclass(frozen=True)
class Drawing:
    """Draws the problems of steps from a source, in its order.

    Attributes:
        train: the source.
        held_out: prompts that are never trained on.
        count: problems of a step, over all ranks.
    """

    train: ProblemSource
    held_out: Collection[str]
    count: int

    def first(self) -> list[Problem]:
        """All training problems where they are few; else those of the first step, and as many as can be had soon."""
        if len(self.train) <= CHECKED:
            return [self.train[i] for i in range(len(self.train))]
        found, end = [self.train[i] for i in range(self.count)], time.monotonic() + LOOK
        for place in random.Random(0).sample(range(CHECKED), TRIED):
            if time.monotonic() > end:
                break
            found.append(self.train[place])
        return found

    def problems(self, position: int, progress: Progress = Progress()) -> Iterator[tuple[Problem, int]]:
        """From a position on, those that are to be drawn and not held out, each with the position after it.

        Raises:
            SettingError: all are held out, or many in a row.
        """
        skipped = 0
        while True:
            place, position = position, position + 1
            if place in progress:
                continue
            problem = self.train[place]
            if problem.prompt not in self.held_out:
                skipped = 0
                yield problem, position
            elif (skipped := skipped + 1) == min(len(self.train), PATIENCE):
                every = "every problem is" if skipped == len(self.train) else f"{skipped:,} problems in a row are"
                raise SettingError(
                    "data.train", f"{every} held out, as {problem.id}", "use other problems for training, or more kinds"
                )

    def of_step(
        self, step: int, position: int, rank: int = 0, ranks: int = 1, progress: Progress = Progress()
    ) -> Drawn:
        """A rank's share of the problems of a step, which begin at ``position``."""
        return self.shared(step, position, [self.count // ranks] * ranks, rank, progress=progress)

    def shared(
        self,
        step: int,
        position: int,
        counts: Sequence[int],
        rank: int = 0,
        before: int = 0,
        progress: Progress = Progress(),
    ) -> Drawn:
        """A rank's of the next problems, of which the ranks have so many each.

        Args:
            before: problems of the step that were drawn before these.
        """
        problems, ends = zip(*islice(self.problems(position, progress), sum(counts)), strict=True)
        first = sum(counts[:rank])
        return Drawn(step, list(problems[first:][: counts[rank]]), before + first, position, ends[-1])
