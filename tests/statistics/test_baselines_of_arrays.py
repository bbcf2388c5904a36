import math

import pytest
import torch

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.statistics.baselines import advantages, second_moments
from oblr.statistics.log import Response, StepRecord

REWARDS = torch.tensor([[1.0, 0.0, 0.5], [2.0, 2.0, -1.0]])
NORMS = torch.tensor([[1.0, 4.0, 2.0], [3.0, 1.0, 5.0]], dtype=torch.float64)


def by_hand(weights):
    found = torch.empty(2, 3)
    for q in range(2):
        for i in range(3):
            others = [j for j in range(3) if j != i]
            total = sum(weights[q, j] for j in others)
            found[q, i] = REWARDS[q, i] - sum(weights[q, j] * REWARDS[q, j] for j in others) / total
    return found


def test_advantages_are_those_of_the_formula():
    torch.testing.assert_close(advantages(RLOOBaseline(), REWARDS), by_hand(torch.ones(2, 3)))
    torch.testing.assert_close(advantages(GradientWeightedBaseline(), REWARDS, NORMS), by_hand(NORMS))


def test_second_moments_whatever_the_order_of_the_responses():
    cells = [(1, 0), (0, 2), (0, 0), (1, 2), (0, 1), (1, 1)]
    rows = [Response(q, square_norm=NORMS[q, i].item(), reward=REWARDS[q, i].item()) for q, i in cells]
    order = [[2, 4, 1], [0, 5, 3]]  # a leave-one-out baseline does not depend on the order in a group
    assert [[cells[k] for k in group] for group in order] == [[(0, 0), (0, 1), (0, 2)], [(1, 0), (1, 1), (1, 2)]]
    found = second_moments(
        StepRecord(1, 1.0, [1.0, 1.0], rows), {"rloo": RLOOBaseline(), "ours": GradientWeightedBaseline()}
    )
    for name, weights in (("rloo", torch.ones(2, 3)), ("ours", NORMS)):
        assert found[name] == pytest.approx((by_hand(weights).double().square() * NORMS).mean().item(), rel=1e-5)


def test_a_norm_that_is_not_known_leaves_out_who_needs_it():
    alike = [Response(0, reward=1.0), Response(0, reward=1.0)]
    rows = [*alike, Response(1, square_norm=2.0, reward=1.0), Response(1, square_norm=2.0, reward=0.0)]
    found = second_moments(StepRecord(1, 1.0, [0.0, 1.0], rows), {"rloo": RLOOBaseline(), "none": NoBaseline()})
    assert found["rloo"] == pytest.approx((2 + 2) / 4)
    assert math.isnan(found["none"])
