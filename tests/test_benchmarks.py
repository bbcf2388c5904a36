"""Every benchmark runs in its short form (`make bench-smoke`); what it measures there is no result, and is not kept."""

import json
import math
import os

import pytest
import warm
from conftest import ROOT

NAMES = [
    "bounds",
    "confinement",
    "estimators",
    "eval",
    "first_hour",
    "folders",
    "gpu",
    "gradnorm",
    "history",
    "horizon",
    "judged",
    "lag",
    "lora",
    "lost",
    "models",
    "observers",
    "overlap",
    "overshoot",
    "page",
    "plan",
    "poison",
    "preemption",
    "ranks",
    "ratios",
    "results",
    "resumed",
    "rewards",
    "roofline",
    "scaling",
    "second_update",
    "selfcheck",
    "settings",
    "step",
    "step_time",
    "tasks",
    "tiers",
]
NAMES += ["contract", "kills"]  # make contract and make soak, which make bench does not run
#: What `make test` runs too.
KEPT = ("bounds", "contract", "overshoot", "second_update")


@pytest.mark.parametrize(
    "name", [name if name in KEPT else pytest.param(name, marks=pytest.mark.miniature) for name in NAMES]
)
def test_short_form(name):
    path = ROOT / "benchmarks" / "results" / f"{name}-quick.json"
    path.unlink(missing_ok=True)
    done = warm.run([f"benchmarks/{name}.py", "--quick"], ROOT, os.environ, timeout=500)
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    figures = {figure["name"]: figure["value"] for figure in result["figures"]}
    assert len(figures) == len(result["figures"])
    assert all(math.isfinite(value) for value in figures.values())
    exact = [value for figure, value in figures.items() if "relative error of n_i" in figure and "exact" in figure]
    exact += [value for figure, value in figures.items() if "relative difference of" in figure]
    assert all(error < 1e-5 for error in exact)
    assert result["command"] == ["python", f"benchmarks/{name}.py", "--quick"]
