"""Against scipy, and where the answer is plain."""

import numpy as np
import pytest
from comparisons import student
from scipy.stats import ttest_1samp, ttest_ind


def test_of_one_stratum_it_is_students_interval():
    values = np.random.default_rng(5).normal(size=5)
    expected = ttest_1samp(values, 0).confidence_interval()
    assert student(values) == pytest.approx((values.mean(), expected.low, expected.high))


def test_of_two_strata_it_is_welchs():
    """Half the difference between one and the other with its sign turned, which scipy has."""
    generator = np.random.default_rng(6)
    first, second = generator.normal(3, 1, 5), generator.normal(100, 4, 10)
    expected = ttest_ind(first, -second, equal_var=False).confidence_interval()
    found = student(first, second)
    assert found == pytest.approx(((first.mean() + second.mean()) / 2, expected.low / 2, expected.high / 2))


def test_what_never_differs_has_an_interval_of_no_width():
    assert student([2.0, 2.0, 2.0], [4.0, 4.0]) == (3, 3, 3)


def test_five_seeds_cover_what_they_say():
    """95 % of intervals, of normal draws; within three standard errors of 4,000."""
    drawn = np.random.default_rng(7).normal(size=(4000, 5))
    covered = sum(low < 0 < high for _, low, high in map(student, drawn)) / len(drawn)
    assert covered == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / 4000) ** 0.5)
