"""What several runs say of two algorithms, and of one over several tasks (arXiv 2108.13264)."""

from collections.abc import Sequence

import numpy as np

from oblr.metrics.aggregate import RESAMPLES, Interval, middle_mean


def probability_of_improvement(values: Sequence[float], rivals: Sequence[float]) -> Interval:
    """``P(X > Y)``, a tie being half a win: over all pairs, resampling both for the interval."""
    generator = np.random.default_rng(0)

    def drawn(data: Sequence[float]) -> np.ndarray:
        return np.asarray(data, dtype=float)[generator.integers(0, len(data), (RESAMPLES, len(data)))]

    def won(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        gaps = ours[..., :, None] - theirs[..., None, :]
        return ((gaps > 0) + 0.5 * (gaps == 0)).mean((-2, -1))

    low, high = np.percentile(won(drawn(values), drawn(rivals)), [2.5, 97.5])
    return Interval(float(won(np.asarray(values), np.asarray(rivals))), float(low), float(high))


def stratified_mean(strata: Sequence[Sequence[float]]) -> Interval:
    """Mean over strata (tasks) of the interquartile means inside them; the interval resamples each for itself."""
    generator = np.random.default_rng(0)
    means, drawn = [], []
    for values in strata:
        data = np.asarray(values, dtype=float)
        means.append(middle_mean(data))
        drawn.append(middle_mean(data[generator.integers(0, len(data), (RESAMPLES, len(data)))]))
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    return Interval(float(np.mean(means)), float(low), float(high))
