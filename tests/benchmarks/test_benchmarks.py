"""Every benchmark runs in its short form (`make bench-smoke`)."""

import os

import pytest
from short_forms import check

NAMES = [
    "ahead",
    "confinement",
    "doctor",
    "doctor_trl",
    "eval",
    "first_hour",
    "folders",
    "gpu",
    "gradnorm",
    "judged",
    "lora",
    "models",
    "observers",
    "overlap",
    "page",
    "plan",
    "preemption",
    "ranks",
    "resumed",
    "rewards",
    "roofline",
    "selfcheck",
    "step",
    "step_time",
    "watched",
]
NAMES += ["contract", "kills", "ahead_kills"]  # make contract and make soak, which make bench does not run
#: What `make test` runs too.
KEPT = ("contract",)


@pytest.mark.parametrize(
    "name", [name if name in KEPT else pytest.param(name, marks=pytest.mark.miniature) for name in NAMES]
)
def test_short_form(name):
    check(f"benchmarks/{name}.py", os.environ)
