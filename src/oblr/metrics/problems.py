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
    """Of the same problems' values [P]: bootstrap interval over pairs, and a two-sided sign-flip permutation test.

    Were there no difference, a problem's two values could as well be exchanged: the p-value is the share of random
    exchanges, the observed one among them, whose mean differs from 0 at least as much.
    """
    differences = second - first
    mean, low, high = bootstrap_interval(differences)
    random, extreme = np.random.default_rng(0), 1
    for rows in _blocks(len(differences)):
        flipped = random.choice([-1.0, 1.0], (rows, len(differences))) @ differences / len(differences)
        extreme += int((np.abs(flipped) >= abs(mean) - 1e-12).sum())
    return Difference(mean, low, high, extreme / (RESAMPLES + 1))


def _resampled_means(values: np.ndarray) -> np.ndarray:
    """[RESAMPLES]; the same draws for the same number of values."""
    random, n = np.random.default_rng(0), len(values)
    return np.concatenate([values[random.integers(0, n, (rows, n))].mean(1) for rows in _blocks(n)])


def _blocks(n: int) -> list[int]:
    """RESAMPLES in parts of at most HELD/n."""
    rows = max(1, min(RESAMPLES, HELD // n))
    return [min(rows, RESAMPLES - start) for start in range(0, RESAMPLES, rows)]
