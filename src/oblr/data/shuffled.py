"""A fixed random order over another source."""

import random
from typing import Protocol

from oblr.types import Problem


class Source(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Problem: ...


class Shuffled:
    """``source`` in an order that depends on ``seed`` alone."""

    def __init__(self, source: Source, seed: int):
        self.source = source
        self.order = random.Random(seed).sample(range(len(source)), len(source))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Problem:
        return self.source[self.order[index]]
