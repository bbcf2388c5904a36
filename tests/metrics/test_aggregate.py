import math

import numpy as np
import pytest
from scipy.stats import bootstrap, trim_mean

from oblr.metrics.aggregate import RESAMPLES, area_under_curve, interquartile_mean


@pytest.mark.parametrize("n", [2, 3, 4, 7, 10])
def test_scipys_trimmed_mean_and_percentile_bootstrap(n):
    values = np.random.default_rng(n).normal(size=n)
    expected = bootstrap(
        (values,), lambda x, axis: trim_mean(x, 0.25, axis=axis), method="percentile", n_resamples=RESAMPLES, rng=0
    ).confidence_interval
    assert interquartile_mean(values) == pytest.approx((trim_mean(values, 0.25), expected.low, expected.high))


def test_the_best_and_the_worst_seed_do_not_count():
    assert interquartile_mean([1.0, 2.0, 3.0, -1000.0]).mean == interquartile_mean([1.0, 2.0, 1000.0, 0.0]).mean == 1.5


def test_one_run_has_no_interval():
    mean, low, high = interquartile_mean([0.25])
    assert mean == 0.25
    assert math.isnan(low)
    assert math.isnan(high)


def test_area():
    assert area_under_curve([0, 20, 24], [0.0, 1.0, 1.0]) == pytest.approx((10 + 4) / 24)
    assert area_under_curve([3], [0.5]) == 0.5
