"""What several runs say of two algorithms, and of one over several tasks."""

from collections.abc import Sequence

import numpy as np
import scipy.stats

from oblr.metrics.aggregate import Interval


def student(*strata: Sequence[float]) -> Interval:
    """Mean over strata (tasks) of the means inside them, with Student's 95 % interval.

    Each stratum has a variance of its own; degrees of freedom are Satterthwaite's, of one stratum n − 1.
    """
    data = [np.asarray(values, dtype=float) for values in strata]
    mean = float(np.mean([values.mean() for values in data]))
    squares = np.array([values.var(ddof=1) / len(values) for values in data]) / len(data) ** 2
    if (square := squares.sum()) == 0:
        return Interval(mean, mean, mean)
    freedom = square**2 / sum(part**2 / (len(values) - 1) for part, values in zip(squares, data, strict=True))
    half = float(scipy.stats.t.ppf(0.975, freedom) * np.sqrt(square))
    return Interval(mean, mean - half, mean + half)
