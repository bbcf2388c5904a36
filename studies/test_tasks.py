"""What the table of the tasks says of allotting responses, on prompts whose noise is known."""

import pytest
import torch
from measured import results
from tasks import left_by_allotment


def twice(values: list[float]) -> torch.Tensor:
    """The same by either group, [P, 2]."""
    return torch.tensor(values, dtype=torch.float64)[:, None].expand(-1, 2)


def test_equal_shares_leave_all_of_the_noise():
    assert left_by_allotment(twice([2, 2, 2]), twice([1, 4, 9])).item() == pytest.approx(1)


def test_one_noisy_prompt_of_four_is_given_what_the_others_do_not_need():
    """Of four prompts the noisy one is given 1 + 4 groups instead of 2."""
    assert left_by_allotment(twice([1, 0, 0, 0]), twice([1, 0, 0, 0])).item() == pytest.approx(2 / 5)


def test_a_group_is_judged_by_the_other():
    """Either group takes another prompt for the noisy one: all that is given more is given in vain."""
    shares = torch.tensor([[1.0, 0], [0, 1]]).double()
    assert left_by_allotment(shares, shares.square()).item() == pytest.approx(2)


def test_no_allotment_by_eight_responses_leaves_less_noise():
    """Beyond its interval, on any task."""
    left = [figure for name, figure in results("tasks").items() if ": noise left, allotted by" in name]
    assert len(left) == 8
    assert all(figure["high"] > 1 for figure in left)
