"""What several runs of one configuration say together: interquartile means over seeds, and areas under curves."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 5000


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def area_under_curve(steps: Sequence[int], values: Sequence[float]) -> float:
    """Mean of a curve over its steps, by the trapezoid rule; of a single point, its value."""
    if len(steps) == 1:
        return values[0]
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))


def interquartile_mean(values: Sequence[float]) -> Interval:
    """Mean of the middle half of ``values``, with the 95 % percentile-bootstrap interval that resamples them.

    One value has no interval: its ends are NaN.
    """
    data = np.asarray(values, dtype=float)
    if len(data) == 1:
        return Interval(float(data[0]), float("nan"), float("nan"))
    drawn = np.random.default_rng(0).integers(0, len(data), (RESAMPLES, len(data)))
    low, high = np.percentile(middle_mean(data[drawn]), [2.5, 97.5])
    return Interval(float(middle_mean(data)), float(low), float(high))


def middle_mean(data: np.ndarray) -> np.ndarray:
    """Over the last axis, without the lowest and the highest quarter, rounded down."""
    cut = data.shape[-1] // 4
    return np.sort(data)[..., cut : data.shape[-1] - cut].mean(-1)
