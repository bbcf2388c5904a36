"""The wheel, installed into an environment of its own, does outside the clone what the scripts do inside it."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.wheel
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([*PIP, *command], check=True)
    (file,) = folder.glob("oblr-*.whl")
    return file


class Environment:
    """A fresh environment that has the wheel alone; called, it runs a program of its in a folder outside the clone.

    Attributes:
        packages: the folder of its packages.
        folder: the one that programs run in.
        pip: the beginning of pip's command line for it.
    """

    def __init__(self, place: Path, wheel: Path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
        self.programs, self.folder = place / "venv" / "bin", place / "elsewhere"
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(place / "venv")}))
        self.pip = [*PIP, "--python", str(self.programs / "python")]
        install = ["install", "--no-deps", "--no-index", "--ignore-installed", str(wheel)]
        subprocess.run([*self.pip, *install], check=True)
        self.folder.mkdir()

    def __call__(self, program, *arguments, status=0):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [self.programs / program, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment that reads everything besides the wheel where it is installed already."""
    run = Environment(tmp_path_factory.mktemp("installed"), wheel)
    (run.packages / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for package in ("oblr", "callbacks"):  # not the clone's
        assert run("python", "-c", f"import {package}; print({package}.__file__)").startswith(str(run.packages))
    return run


@pytest.fixture(scope="module")
def library(wheel, tmp_path_factory):
    """What ``pip install oblr`` makes: the wheel, and what pip fetches for it."""
    run = Environment(tmp_path_factory.mktemp("library"), wheel)
    subprocess.run([*run.pip, "install", str(wheel)], check=True)
    return run


def test_the_library_needs_what_pip_installs_for_it(library):
    subprocess.run([*library.pip, "check"], check=True)
    used = (
        "import torch, transformers\n"
        "from oblr.baselines.rloo import RLOOBaseline\n"
        "from oblr.gradnorm.measure import GradNorms\n"
        "from oblr.statistics.log import STATISTICS\n"
        "from oblr.schedules.noise import NoiseSchedule\n"
        "print(NoiseSchedule(1e-2, 3).level_steps)\n"
    )
    assert library("python", "-c", used) == "3\n"
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    begun = time.monotonic()
    assert len(library("python", "-c", example).splitlines()) == 3
    assert time.monotonic() - begun < 60
    for name in ("lightning", "hydra", "omegaconf", "datasets", "vllm", "oblr.policy.step"):
        assert library("python", "-c", f"import {name}", status=1).splitlines()[-1].startswith("ModuleNotFoundError: ")


def test_without_the_trainer_its_commands_say_what_to_install(library):
    scripts = sorted(path.name for path in library.programs.glob("oblr-*"))
    scripts.remove("oblr-doctor")  # which reads what the library has logged
    assert library("oblr-doctor", "nowhere", status=2).startswith("error: ")
    assert "oblr-train" in scripts
    for script in scripts:
        said = library(script, "experiment=pocket", status=1)
        assert re.fullmatch(r'error: this Python \(.*\) has no hydra \(pip install "oblr\[train\]"\)\n', said)


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
    assert "eta0: 0.08" in installed("oblr-train", "--config-dir", "own", "experiment=mine", "--cfg", "job")
