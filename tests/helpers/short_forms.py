"""The short form of a script that measures: it runs, and what it says has the form of a result."""

import json
import math
from collections.abc import Mapping

import warm
from figures import ROOT


def check(script: str, environment: Mapping[str, str]) -> None:
    """Run ``script``, a path in the repository, with ``--quick``; what it measures there is no result, and not kept."""
    folder, _, name = script.removesuffix(".py").partition("/")
    path = ROOT / folder / "results" / f"{name}-quick.json"
    path.unlink(missing_ok=True)
    done = warm.run([script, "--quick"], ROOT, environment, timeout=500)
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    figures = {figure["name"]: figure["value"] for figure in result["figures"]}
    assert len(figures) == len(result["figures"])
    assert all(math.isfinite(value) for value in figures.values())
    exact = [value for figure, value in figures.items() if "relative error of n_i" in figure and "exact" in figure]
    exact += [value for figure, value in figures.items() if "relative difference of" in figure]
    assert all(error < 1e-5 for error in exact)
    assert result["command"] == ["python", script, "--quick"]
