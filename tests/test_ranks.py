"""The same rollouts give the same norms, moments, rate and parameters on any number of ranks."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT


def run(kind, passes, rewards, folder):
    subprocess.run(
        [sys.executable, str(ROOT / "tests" / "rank_worker.py"), kind, passes, rewards, str(folder)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return torch.load(Path(folder) / f"{kind}-{passes}-{rewards}.pt")


@pytest.mark.parametrize(("tying", "rewards"), [("tied", "mixed"), ("tied", "first"), ("untied", "all")])
def test_two_ranks_equal_one_process(tmp_path, tying, rewards):
    folder = tmp_path / tying
    folder.mkdir()
    single = run("single", "two", rewards, folder)
    for kind in ("fsdp", "ddp"):
        for passes in ("one", "two"):
            both = run(kind, passes, rewards, folder)
            for name, expected in single.items():
                torch.testing.assert_close(
                    both[name], expected, rtol=1e-5, atol=1e-6, equal_nan=True, msg=f"{kind} {passes} {name}"
                )
