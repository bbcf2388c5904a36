"""What problems come from, and what may be built on top of it."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from oblr.problem import Problem


class Source(Protocol):
    """A finite, indexable set of problems; ``notes`` are lines that tell the user what was made of it."""

    @property
    def notes(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Problem: ...
    def __iter__(self) -> Iterator[Problem]: ...
