"""Every benchmark runs in its short form; what it measures there is no result, and is not kept."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize("name", ["gradnorm", "scaling", "tiers", "step"])
def test_short_form(name):
    subprocess.run([sys.executable, f"benchmarks/{name}.py", "--quick"], cwd=ROOT, check=True, capture_output=True)
    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}-quick.json").read_text())
    figures = {figure["name"]: figure["value"] for figure in result["figures"]}
    assert len(figures) == len(result["figures"])
    assert all(isinstance(value, float | int) for value in figures.values())
    assert result["command"] == ["python", f"benchmarks/{name}.py", "--quick"]
