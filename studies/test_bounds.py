"""The paper's bound along real trajectories, and how the gradient falls."""

import math

import pytest
from bounds import average_square_gradient, steps_and_bounds


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_theorem_3_the_bound_holds_along_a_trajectory(seed):
    """By how much is in studies/results/bounds.json."""
    for change, bound in steps_and_bounds(seed):
        assert change < bound < 0


def test_theorem_6_the_average_gradient_falls_as_one_over_the_root_of_t():
    slope = math.log(average_square_gradient(1024) / average_square_gradient(64)) / math.log(1024 / 64)
    assert slope < -0.5
