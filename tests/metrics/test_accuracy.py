import pytest
import torch

from oblr.metrics.accuracy import ProblemAccuracy, wilson


def measure(scores):
    metric = ProblemAccuracy()
    metric.update(scores)
    return metric.compute()


def test_one_try_a_problem_is_wilsons_interval():
    interval = measure(torch.tensor([[1.0]] * 30 + [[0.0]] * 10))
    # (centre ± half) from the textbook formula at p = 0.75, n = 40, z = 1.96
    assert interval.mean == 0.75
    assert interval.low == pytest.approx(0.598, abs=2e-3)
    assert interval.high == pytest.approx(0.858, abs=2e-3)


def test_all_right_is_not_certainty():
    interval = measure(torch.ones(50, 4))
    assert interval.high == pytest.approx(1.0)
    assert interval.low == pytest.approx(wilson(1.0, 50).low)
    assert 0.9 < interval.low < 0.95


def test_more_tries_at_the_same_problems_do_not_count_as_more_problems():
    per_problem = torch.tensor([[1.0], [0.0]]).repeat(20, 1)
    one, many = measure(per_problem), measure(per_problem.repeat(1, 16))
    assert one.low == pytest.approx(many.low, abs=5e-3)


@pytest.mark.parametrize("mean", [0.3, 0.9])
def test_coverage(mean):
    """Problems differ in difficulty, tries are correlated: about 95 % of the intervals hold the true mean."""
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(1000):
        spread = torch.rand(60, 1, generator=generator)
        difficulty = mean + (spread - 0.5) * 2 * min(mean, 1 - mean)
        interval = measure((torch.rand(60, 4, generator=generator) < difficulty).float())
        covered += interval.low <= mean <= interval.high
    assert 0.93 <= covered / 1000 <= 0.975
