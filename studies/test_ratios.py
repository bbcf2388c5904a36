"""What the product refuses for ratios in bfloat16 is what was measured."""

import pytest
from measured import results

from oblr.commands.checks import ROUNDING


def test_the_rounding_that_is_refused_for_is_the_measured_one():
    measured = results("ratios")["bfloat16 engine: Δ of a token, standard deviation"]["value"]
    assert pytest.approx(measured, rel=0.1) == ROUNDING
