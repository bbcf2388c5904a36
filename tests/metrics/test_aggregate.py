import math

import numpy as np
import pytest
from scipy.stats import bootstrap, mannwhitneyu, trim_mean

from oblr.metrics.aggregate import (
    RESAMPLES,
    area_under_curve,
    interquartile_mean,
    probability_of_improvement,
    stratified_mean,
)


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


def test_the_chance_to_win_is_mann_whitneys_u_over_all_pairs():
    generator = np.random.default_rng(3)
    ours, theirs = generator.integers(0, 6, 9) + 1.0, generator.integers(0, 6, 7) + 0.0
    chance = probability_of_improvement(ours, theirs)
    assert chance.mean == pytest.approx(mannwhitneyu(ours, theirs).statistic / (9 * 7))
    assert chance.low < chance.mean < chance.high
    back = probability_of_improvement(theirs, ours)
    assert chance.mean + back.mean == pytest.approx(1)


def test_who_always_wins_wins_with_certainty():
    assert probability_of_improvement([2.0, 3.0], [0.0, 1.0]) == (1, 1, 1)


def test_strata_count_alike_and_are_resampled_apart():
    """Between strata lie 100 points, which are no uncertainty."""
    strata = [[0.0, 1.0, 2.0, 3.0], [100.0, 101.0, 102.0, 103.0, 104.0, 105.0, 106.0, 107.0]]
    mean, low, high = stratified_mean(strata)
    assert mean == pytest.approx((1.5 + 103.5) / 2)
    assert mean - 2 < low < mean < high < mean + 2


def test_one_stratum_is_an_interquartile_mean():
    values = np.random.default_rng(5).normal(size=7)
    assert stratified_mean([values]) == pytest.approx(interquartile_mean(values))
