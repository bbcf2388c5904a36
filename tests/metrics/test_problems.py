import numpy as np
import pytest
from scipy.stats import bootstrap, permutation_test

from oblr.metrics.problems import RESAMPLES, bootstrap_interval, paired_difference


def test_scipys_percentile_bootstrap():
    values = np.random.default_rng(1).normal(size=40)
    expected = bootstrap((values,), np.mean, method="percentile", n_resamples=RESAMPLES, rng=0).confidence_interval
    assert bootstrap_interval(values) == pytest.approx((values.mean(), expected.low, expected.high))


def test_resampling_in_parts_holds_little():
    values = np.random.default_rng(1).normal(size=3000)
    mean, low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / 3000**0.5
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.1 * half)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_where_all_problems_agree_the_interval_is_about_the_rule_of_three(value):
    mean, low, high = bootstrap_interval(np.full(30, value), (0.0, 1.0))
    assert mean == value
    assert high - low == pytest.approx(3 / 30, abs=0.03)
    assert low <= value <= high


@pytest.mark.parametrize("tries", [1, 16])
@pytest.mark.parametrize("truth", [0.02, 0.5])
def test_coverage(tries, truth):
    """Of 30 problems, of all difficulties; `benchmarks/eval.py` has the whole grid."""
    random, covered = np.random.default_rng(0), {None: 0, (0.0, 1.0): 0}
    for _ in range(200):
        values = random.binomial(tries, random.beta(truth, 1 - truth, 30)) / tries
        for ends in covered:
            interval = bootstrap_interval(values, ends)
            covered[ends] += interval.low <= truth <= interval.high
    plain, with_ends = (count / 200 for count in covered.values())
    assert with_ends >= 0.93
    assert (plain >= 0.9) == (truth == 0.5)


def test_scipys_sign_flip_test():
    random = np.random.default_rng(2)
    first = random.random(12)
    second = first + random.normal(0.1, 0.2, 12)
    exact = permutation_test(
        (second, first), lambda x, y, axis: (x - y).mean(axis), permutation_type="samples", vectorized=True
    )
    difference = paired_difference(first, second)
    assert difference.p_value == pytest.approx(exact.pvalue, abs=0.02)
    assert paired_difference(second, first).p_value == difference.p_value
    assert difference.mean == pytest.approx((second - first).mean())
    assert difference.low < difference.mean < difference.high


def test_an_interval_and_its_p_value_say_the_same():
    """The interval holds just those differences that the test does not reject."""
    random, rejected = np.random.default_rng(0), 0
    for _ in range(60):
        n = int(random.integers(1, 60))
        first = random.integers(0, 5, n) / 4
        second = np.clip(first + random.integers(-1, 3, n) / 4 * (random.random(n) < random.random()), 0, 1)
        difference = paired_difference(first, second)
        assert (difference.p_value > 0.05) == (difference.low <= 0 <= difference.high)
        rejected += difference.p_value <= 0.05
        for end, outside in ((difference.low, -1e-6), (difference.high, 1e-6)):
            if np.isfinite(end):
                assert paired_difference(first + end, second).p_value > 0.05
                assert paired_difference(first + end + outside, second).p_value <= 0.05
        swapped = paired_difference(second, first)
        assert swapped == (-difference.mean, -difference.high, -difference.low, difference.p_value)
    assert 5 < rejected < 55


def test_an_interval_of_a_difference_holds_it():
    random, held = np.random.default_rng(0), 0
    for _ in range(200):
        chances = random.beta(0.5, 0.5, 30)
        first, second = random.binomial(4, chances) / 4, random.binomial(4, chances) / 4
        difference = paired_difference(first, second)
        held += difference.low <= 0 <= difference.high
    assert 180 <= held < 200


def test_the_same_twice_does_not_differ():
    values = np.random.default_rng(0).random(50)
    assert paired_difference(values, values) == (0.0, 0.0, 0.0, 1.0)
    for n in (1, 3001, 7919):  # in as many parts as memory allows
        assert paired_difference(np.ones(n), np.ones(n)).p_value == 1.0
    assert paired_difference(values, values + 1).p_value == pytest.approx(1 / (RESAMPLES + 1))
