"""The table of what a prompt's history adds to its baseline, on steps made by hand."""

import pytest
import torch
from history import second_moments
from measured import results

from oblr.baselines.base import Groups


def step(rewards: list[float], norms: list[float]) -> Groups:
    of = torch.tensor([rewards], dtype=torch.float64)
    weights = torch.tensor([norms], dtype=torch.float64)
    return Groups(of, weights, torch.ones_like(of), of, problems=torch.tensor([1]))


@pytest.mark.parametrize(
    ("discount", "alone", "baselines"),
    [(0, False, (0, 1)), (1, False, (4 / 6, 5 / 5)), (0.5, False, (2 / 4, 3 / 3)), (0.5, True, (1, 1))],
)
def test_second_moments_of_two_visits(discount, alone, baselines):
    """Four is the weight of the first visit, one and two are those of the second's responses."""
    moments = second_moments([step([1, 1], [3, 1]), step([1, 0], [1, 2])], discount, alone=alone)
    expected = ((1 - baselines[0]) ** 2 * 1 + (0 - baselines[1]) ** 2 * 2) / 2
    assert moments.tolist() == pytest.approx([0, expected])


def test_a_history_alone_begins_with_the_group():
    first, _ = second_moments([step([1, 0], [1, 1])] * 2, 1.0, alone=True)
    assert first.item() == 1


def test_with_exact_norms_a_history_is_quieter_on_every_task():
    """Than without, and than uniform weights, of which it takes nothing off on average."""
    for task in ("pocket", "pocket_graded", "pocket_rare"):
        weighted, uniform = (
            results("history")[f"{task}, visits 9 to 25, {weights}, γ = 1: second moment"]
            for weights in ("weighted", "uniform")
        )
        assert weighted["high"] < 0.6 < uniform["low"]
