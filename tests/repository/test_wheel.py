"""The wheel, installed into an environment of its own, does outside the clone what the scripts do inside it."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Runs a program of a fresh environment in a folder outside the clone.

    The environment has our wheel, and reads everything else where it is installed already.
    """
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([*pip, *wheel], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    (own / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (file,) = folder.glob("oblr-*.whl")
    install = ["--python", str(python), "install", "--no-deps", "--no-index", "--ignore-installed", str(file)]
    subprocess.run([*pip, *install], check=True)
    (folder / "elsewhere").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program, *arguments, status=0):
        command = [folder / "venv" / "bin" / program, *arguments]
        done = subprocess.run(
            command, cwd=folder / "elsewhere", env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout

    for package in ("oblr", "callbacks"):  # not the clone's
        assert run("python", "-c", f"import {package}; print({package}.__file__)").startswith(str(own))
    run.folder = folder / "elsewhere"
    return run


def test_demo_evaluation_and_report_outside_the_clone(installed):
    installed("oblr-train", "experiment=pocket", "steps=2", "rollout.prompts_per_step=4", "data.held_out.size=8")
    (run,) = (installed.folder / "runs" / "pocket").iterdir()
    record = json.loads((run / "run.json").read_text())
    assert record["revision"][:40] == subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    assert record["versions"]["oblr"] == "0.1.0"
    assert json.loads((run / "finished.json").read_text())["steps"] == 2
    said = installed("oblr-eval", "model=last", "limit=4", "benchmarks=[chain_sum]", "rollout.engine=hf")
    assert "| chain_sum | 4 " in said
    assert f"report      {run / 'report.html'}" in installed("oblr-report", str(run))
    assert "| `power` | number > 0 and ≤ 1 |" in installed("oblr-settings")


def test_errors_lead_to_pages_that_came_along(installed):
    (page,) = re.findall(r"; see (/.*)$", installed("oblr-train", "experiment=pocket", "data=none", status=2))
    assert Path(page).read_text() == (ROOT / "docs" / "data.md").read_text()


def test_a_policy_that_stays_in_the_clone_is_one_line(installed):
    said = installed("oblr-train", "experiment=pocket_rare", status=2)
    assert re.fullmatch(r"error: policy\.path: pocket_rare is in models/ of the repository, .*\n", said)
    small = ("steps=1", "rollout.engine=hf", "rollout.prompts_per_step=4", "data.held_out.size=8", "~callbacks.summary")
    installed("oblr-train", "experiment=pocket_rare", f"paths.models={ROOT}/models", *small)


def test_a_sweep_of_configuration_of_ones_own(installed):
    own = installed.folder / "own" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("# @package _global_\ndefaults: [pocket, _self_]\nname: mine\nsteps: 1\n")
    arguments = ["experiment=mine", "rollout.engine=hf", "rollout.prompts_per_step=4", "data.held_out.size=8"]
    installed("oblr-sweep", "--config-dir", "own", *arguments, "baseline=rloo,none", "~callbacks.summary")
    assert len(list((installed.folder / "runs" / "mine").glob("*/finished.json"))) == 2
    assert "eta0: 0.03" in installed("oblr-train", "--config-dir", "own", "experiment=mine", "--cfg", "job")
