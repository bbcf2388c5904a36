"""What a prompt's earlier responses add to its baseline, on steps made by hand."""

import pytest
import torch
from history import Step, second_moments, uniform, weighted


def step(rewards: list[float], norms: list[float] | None = None, problem: str = "p") -> Step:
    of = torch.tensor([rewards], dtype=torch.float64)
    return Step([problem], of, torch.ones_like(of) if norms is None else torch.tensor([norms], dtype=torch.float64))


@pytest.mark.parametrize(
    ("discount", "alone", "baselines"),
    [
        (0, False, (0, 1)),
        (1, False, (2 / 3, 1)),  # one other now, two before
        (0.5, False, (0.5, 1)),
        (1, True, (1, 1)),
        (0.5, True, (1, 1)),
    ],
)
def test_earlier_responses_are_others_that_count_less(discount, alone, baselines):
    moments = second_moments([step([1, 1]), step([1, 0])], uniform, discount, alone)
    assert moments.tolist() == pytest.approx([0, sum((r - b) ** 2 for r, b in zip((1, 0), baselines, strict=True)) / 2])


def test_two_visits_ago_counts_twice_less():
    *_, last = second_moments([step([1, 1]), step([0, 0]), step([1, 1])], uniform, 0.5, alone=True)
    assert last.item() == pytest.approx((1 - 0.25 / 0.75) ** 2)


def test_weights_are_the_norms():
    *_, last = second_moments([step([1, 0], [3, 1]), step([0, 0], [2, 4])], weighted, 1, alone=True)
    assert last.item() == pytest.approx(0.75**2 * 3)


def test_other_problems_have_no_part_in_it():
    *_, last = second_moments([step([1, 1], problem="q"), step([1, 0])], uniform, 1)
    assert last.item() == pytest.approx(1)
