"""Means over a benchmark's problems: their intervals, and whether two runs differ. A problem's tries stay together."""

from typing import NamedTuple

import numpy as np

from oblr.metrics.aggregate import Interval

RESAMPLES = 5000
#: Entries of an array of resampled problems that are held at once.
HELD = 4_000_000


def bootstrap_interval(values: np.ndarray, ends: tuple[float, float] | None = None) -> Interval:
    """Mean of the problems' values [P], with its 95 % percentile bootstrap interval over problems.

    Args:
        ends: of the scale, where it has any. One problem at each is added before the problems are resampled: without
            them the interval of a benchmark on which everything fails has no width, and at P = 30 one near an end
            holds the truth about half the time. ``benchmarks/eval.py`` has the coverage of both.
    """
    low, high = np.percentile(_resampled_means(np.append(values, ends or ())), [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high))


class Difference(NamedTuple):
    """What a mean is larger in the second of two runs, its 95 % interval, and the p-value of no difference."""

    mean: float
    low: float
    high: float
    p_value: float


def paired_difference(first: np.ndarray, second: np.ndarray) -> Difference:
    """Of the same problems' values [P]: a two-sided sign-flip permutation test, and the interval that inverts it.

    Were the true difference δ, each problem's difference less δ could as well have the other sign: the p-value of δ is
    the share of random flips, none at all among them, whose mean differs from 0 at least as much. A flip does so
    exactly where δ lies between the mean of the differences that it flips and the mean of the others (Hartigan 1969).
    The interval is of all δ whose p-value exceeds 5 %: it holds 0 if and only if the p-value of no difference does.
    Of fewer than 6 problems no difference can be excluded: its ends are infinite.
    """
    differences, random = second - first, np.random.default_rng(0)
    n, ends = len(differences), list[np.ndarray]()
    for rows in _blocks(n):
        flips = random.integers(0, 2, (rows, n))
        flipped, count = flips @ differences, flips.sum(1)
        # a flip of nothing, or of all, is as far from 0 as none, whatever δ is
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.stack([flipped / count, (differences.sum() - flipped) / (n - count)], axis=1)
        means[(count == 0) | (count == n)] = [-np.inf, np.inf]
        ends.append(np.sort(means, axis=1))
    lows, highs = np.concatenate(ends).round(12).T
    excluded = int(0.05 * (RESAMPLES + 1))  # with so many flips, none at all among them, p is at most 5 %
    p_value = (1 + int(((lows <= 0) & (highs >= 0)).sum())) / (RESAMPLES + 1)
    low, high = np.sort(lows)[excluded - 1], np.sort(highs)[-excluded]
    return Difference(float(differences.mean()), float(low), float(high), p_value)


def _resampled_means(values: np.ndarray) -> np.ndarray:
    """[RESAMPLES]; the same draws for the same number of values."""
    random, n = np.random.default_rng(0), len(values)
    return np.concatenate([values[random.integers(0, n, (rows, n))].mean(1) for rows in _blocks(n)])


def _blocks(n: int) -> list[int]:
    """RESAMPLES in parts of at most HELD/n."""
    rows = max(1, min(RESAMPLES, HELD // n))
    return [min(rows, RESAMPLES - start) for start in range(0, RESAMPLES, rows)]
