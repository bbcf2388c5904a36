"""Random orders over another source, one a pass."""

import random
from collections.abc import Iterator
from functools import lru_cache

from oblr.data.source import Source
from oblr.kinds import Seed
from oblr.problem import Problem


class Shuffled:
    """``source`` again and again, each pass in an order of its own; problem ``i`` depends on ``i`` and ``seed`` alone.

    Its length is that of one pass; indices beyond it belong to later ones.

    Args:
        source: what is shuffled.
        seed: of the order.
    """

    def __init__(self, source: Source, seed: Seed):
        self.source, self.seed, self.notes = source, seed, source.notes

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Problem:
        number, place = divmod(index, len(self))
        return self.source[self.shuffled(number)[place]]

    def shuffled(self, number: int) -> list[int]:
        """Places in the source, in the order of a pass, which are counted from 0."""
        return _order(self.seed, number, len(self))

    def __iter__(self) -> Iterator[Problem]:
        return (self[index] for index in range(len(self)))


@lru_cache(maxsize=8)
def _order(seed: int, number: int, length: int) -> list[int]:
    return random.Random(f"{seed}/{number}").sample(range(length), length)
