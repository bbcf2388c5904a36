import math
import random

import pytest
from scipy.stats import binom

from oblr.doctor.measures import log_tail, mean, ratio, share, slope, unusual


def covered(interval, truth, draws=400):
    return sum((found := interval(random.Random(seed))).low <= truth <= found.high for seed in range(draws)) / draws


def test_intervals_hold_what_they_say():
    def drawn(draw):
        return [draw.gauss(1, 2) for _ in range(30)]

    assert covered(lambda draw: share(sum(draw.random() < 0.1 for _ in range(50)), 50), 0.1) > 0.92
    assert 0.91 < covered(lambda draw: mean(drawn(draw)), 1.0) < 0.98
    assert 0.91 < covered(lambda draw: slope([0.5 * t + draw.gauss(0, 1) for t in range(30)]), 0.5) < 0.98
    assert 0.90 < covered(lambda draw: ratio(drawn(draw), [draw.gauss(4, 1) for _ in range(30)]), 0.25) < 0.98


def test_of_nothing_nothing_is_known():
    assert (share(0, 0).low, share(0, 0).high) == (0, 1)
    for found in (mean([]), mean([1.0]), slope([1.0, 2.0]), ratio([1.0], [2.0]), ratio([1.0] * 5, [0.0] * 5)):
        assert (found.low, found.high) == (-math.inf, math.inf)
    assert ratio([1.0, 0.0, 0.0], [1.0, 0.0, 0.0]).high == math.inf


@pytest.mark.parametrize(("of", "least", "p"), [(7, 3, 1e-4), (63, 5, 0.3), (7, 7, 0.9), (7, 0, 0.5)])
def test_the_tail_is_scipys(of, least, p):
    assert log_tail(of, least, p) == pytest.approx(math.log10(binom.sf(least - 1, of, p)))


def test_the_tails_ends():
    assert log_tail(7, 1, 1.0) == 0
    assert log_tail(7, 1, 0.0) == -math.inf


def test_what_is_unusual():
    usual = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.0, 1.1]
    assert unusual(usual) == [0.0] * 8
    assert unusual([*usual, 1.1])[-1] < 1
    assert unusual([*usual, 10.0])[-1] > 10
    assert unusual([*usual, 0.0])[-1] == 0
    assert unusual([1.0] * 8 + [1.2])[-1] == pytest.approx(math.log(1.2) / 0.1)
