"""Against scipy, and where the answer is plain."""

import numpy as np
import pytest
from comparisons import probability_of_improvement, stratified_mean
from scipy.stats import mannwhitneyu

from oblr.metrics.aggregate import interquartile_mean


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
