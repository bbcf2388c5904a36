"""What charts draw: a line for each configuration, and of many points those that show its course."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oblr.record.curves import Curve
from oblr.report.comparison import configuration
from oblr.report.runs import Run

#: Buckets of a thinned line, at most and at least. From each come its lowest, its highest and its last point.
MOST, LEAST = 256, 32
#: Numbers of all thinned lines on a page, about.
NUMBERS = 600_000


@dataclass(frozen=True)
class Line:
    """One configuration's course: ``columns`` are the mean over its runs and, of several, the highest and the lowest.

    Attributes:
        of: the number of the configuration.
        steps: int64 [n], rising.
        columns: float64 [n] each.
    """

    of: int
    steps: np.ndarray
    columns: tuple[np.ndarray, ...]

    def at(self, places: np.ndarray | slice) -> "Line":
        """Some of its points, as they are."""
        return Line(self.of, self.steps[places], tuple(column[places] for column in self.columns))

    def between(self, first: int, last: int) -> "Line":
        """Its points of these steps."""
        low, high = np.searchsorted(self.steps, [first, last + 1])
        return self.at(slice(low, high))

    @property
    def numbers(self) -> int:
        return len(self.steps) * (1 + len(self.columns))

    def written(self) -> list[object]:
        """As JSON has it: configuration, steps, and each column."""
        return [self.of, self.steps.tolist(), *(column.tolist() for column in self.columns)]


def configurations(runs: Sequence[Run], differs: Sequence[str]) -> list[list[Run]]:
    """The runs of each configuration."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(str(configuration(run, differs)), []).append(run)
    return list(found.values())


def lines(groups: Sequence[Sequence[Run]], tag: str) -> list[Line]:
    """The lines of a tag: one for each configuration that has it, of all of its points."""
    found = ([run.curves[tag] for run in runs if tag in run.curves] for runs in groups)
    return [line(of, curves) for of, curves in enumerate(found) if curves]


def line(of: int, curves: Sequence[Curve]) -> Line:
    """At each step what the curves make together that have one there."""
    each = [(np.array(steps, np.int64), np.array(values, np.float64)) for steps, values in curves]
    if len(each) == 1:
        return Line(of, each[0][0], (each[0][1],))
    steps = np.unique(np.concatenate([at for at, _ in each]))
    values = np.full((len(each), len(steps)), np.nan)
    for row, (at, of_one) in zip(values, each, strict=True):
        row[np.searchsorted(steps, at)] = of_one
    return Line(of, steps, (np.nanmean(values, 0), np.nanmax(values, 0), np.nanmin(values, 0)))


def thinned(whole: Line, buckets: int) -> Line:
    """Of a long line its first point, and of each bucket of points the last, and the ends of each column.

    So none of its extremes is lost, and every point that is left is one of the line.
    """
    count = len(whole.steps)
    size = width(count, buckets)
    if size == 1:
        return whole
    full = count // size * size
    kept = [np.array([0, count - 1]), np.arange(size - 1, count, size)]
    for column in whole.columns:
        for extreme in (np.argmin, np.argmax):
            kept.append(extreme(column[:full].reshape(-1, size), axis=1) + np.arange(0, full, size))
            if full < count:
                kept.append(np.array([full + extreme(column[full:])]))
    return whole.at(np.unique(np.concatenate(kept)))


def width(count: int, buckets: int) -> int:
    """How many points a bucket has: 1 where a line is short enough to be left as it is."""
    return -(-count // buckets) if count > 3 * buckets else 1


def buckets_of(shown: Sequence[Line]) -> int:
    """How many buckets each line may have, so that all have about ``NUMBERS`` numbers."""
    each = sum((1 + 2 * len(line.columns)) * (1 + len(line.columns)) for line in shown)
    return max(LEAST, min(MOST, NUMBERS // max(each, 1)))
