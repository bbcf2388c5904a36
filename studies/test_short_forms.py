"""Every study runs in its short form."""

import os

import pytest
from short_forms import check

NAMES = ["along", "bounds", "estimators", "history", "horizon", "lost", "old", "overshoot", "ratios", "recomputed"]
NAMES += ["advice", "advice_exact", "lags", "pretrained", "prior", "results", "second_update", "smoothness", "tasks"]
NAMES += ["tiers"]


@pytest.mark.parametrize("name", NAMES)
def test_short_form(name):
    check(f"studies/{name}.py", os.environ)
