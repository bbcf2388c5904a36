"""Where the seconds of a step go."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall-clock seconds per named phase; inside a phase, further ones count as part of it.

    Attributes:
        seconds: per phase, since the last `reset`.
        current: the phase under way, for displays; empty between phases.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.current = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.current:
            yield
            return
        self.current, start = name, time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
            self.current = ""

    def reset(self) -> dict[str, float]:
        """Return the seconds so far and start from nothing."""
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds
