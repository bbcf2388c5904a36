"""The examples of the pages, as they are pasted."""

import os
import re
import subprocess
import sys

import pytest
from cases import wide
from conftest import ROOT


@pytest.mark.parametrize("page", ["README.md", *wide("docs/statistics.md", "docs/trl.md", "docs/lightning.md")])
def test_an_example_runs(page, tmp_path):
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "models").symlink_to(ROOT / "models")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    kept = tmp_path / "runs" / "trl" / "statistics.jsonl"
    assert kept.exists() == (page == "docs/trl.md")
    if kept.exists():
        assert len(kept.read_text().splitlines()) == 3
    if "print(" in example:
        assert len(done.stdout.splitlines()) == 3
