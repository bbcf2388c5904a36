"""Several sources as one."""

import random
from collections.abc import Iterator, Mapping

from oblr.data.source import Source
from oblr.errors import SettingError
from oblr.kinds import Positive, Seed, check
from oblr.problem import Problem


class Mixture:
    """Problems of several sources, drawn at random; problem ``i`` depends on ``i`` and ``seed`` alone.

    Each source is gone through in its own order, again and again. The length is that of all sources together.

    Args:
        sources: by name.
        weights: by the same names; how often each is drawn from, over the others.
        seed: of the order.

    Raises:
        SettingError: sources and weights do not fit together.
    """

    def __init__(self, sources: Mapping[str, Source], weights: Mapping[str, Positive], seed: Seed):
        if not sources or sources.keys() != weights.keys():
            raise SettingError(
                "data.weights",
                f"those of {sorted(weights)} do not fit the sources {sorted(sources)}",
                "give each source a weight",
            )
        for weight in weights.values():
            check("data.weights", Positive, weight)
        self.sources, self.weights = sources, [weights[name] for name in sources]
        self.notes = [note for source in sources.values() for note in source.notes]
        self.random = random.Random(seed)
        self.drawn: list[tuple[str, int]] = []  # of each problem so far: its source, and its index there
        self.counts = dict.fromkeys(sources, 0)

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def __getitem__(self, index: int) -> Problem:
        while len(self.drawn) <= index:
            (name,) = self.random.choices(list(self.sources), self.weights)
            self.drawn.append((name, self.counts[name]))
            self.counts[name] += 1
        name, place = self.drawn[index]
        return self.sources[name][place]

    def __iter__(self) -> Iterator[Problem]:
        return (self[index] for index in range(len(self)))
