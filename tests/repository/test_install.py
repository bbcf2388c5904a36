"""The set-up: one source of pins, and an install that knows when it was interrupted."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest
import warm
import yaml
from conftest import POCKET, ROOT
from packages import PROVIDERS, needed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rooms import imported, sources
from triton import knobs
from vllm import envs

from oblr.rollout.server import ServerEngine
from oblr.run.private import CACHES

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PYPROJECT["optional-dependencies"]
#: The extras that name it bring the trainer.
TRAINER = "oblr[train]"


def test_environment_yml_has_the_pins_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    pins = [pin for extra in ("train", "cuda", "dev") for pin in EXTRAS[extra] if pin != TRAINER]
    assert pip == [*pins, "--editable ."]
    assert f"python{PYPROJECT['requires-python']}" in environment["dependencies"]


def test_everything_is_pinned():
    assert EXTRAS.keys() == {"train", "cpu", "cuda", "dev"}
    for requirement in {pin for extra in EXTRAS.values() for pin in extra} - {TRAINER}:
        assert re.fullmatch(r"[\w-]+(\[\w+\])?==[\d.]+", requirement), requirement


def test_the_trainer_comes_with_its_engines_and_has_what_the_library_takes():
    assert [name for name, pins in EXTRAS.items() if TRAINER in pins] == ["cpu", "cuda"]
    pins = {pin.name: pin.specifier for pin in map(Requirement, EXTRAS["train"])}
    assert {one.name for one in map(Requirement, PYPROJECT["dependencies"])} == {"torch", "transformers"}
    for requirement in map(Requirement, PYPROJECT["dependencies"]):
        (pin,) = pins[requirement.name]
        assert pin.version in requirement.specifier


@pytest.fixture
def clone(tmp_path):
    """A clone whose python is a stand-in that only records what it is asked to install."""
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    python = tmp_path / "python-stand-in"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in *Python.h*) if [ -e no-header ]; then echo /usr/include/Python.h; fi; exit;; esac\n'
        'echo "$@" >> calls\n'
        'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp python-stand-in "$3/bin/python"; fi\n'
        '[ ! -e fail ] || case "$*" in *"-e ."*) exit 1;; esac\n'
        '[ ! -e no-cuda ] || case "$*" in *"torch.version.cuda"*) exit 1;; esac\n'
    )
    python.chmod(0o755)

    def make(target="install", *variables):
        (tmp_path / "calls").unlink(missing_ok=True)
        result = subprocess.run(
            ["make", target, "PYTHON=./python-stand-in", "FLAVOUR=cpu", *variables],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )
        calls = (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""
        return result, calls

    return tmp_path, make


def test_a_second_install_installs_nothing(clone):
    _, make = clone
    result, calls = make()
    assert result.returncode == 0, result.stderr
    assert "torch==2.13.0+cpu" in calls
    assert "-e .[cpu,dev]" in calls
    assert "uninstall -q -y torchvision torchaudio torchcodec" in calls
    assert make()[1] == ""


def test_a_half_finished_install_is_repaired_from_nothing(clone):
    folder, make = clone
    (folder / "fail").touch()
    assert make()[0].returncode != 0
    (folder / ".venv" / "half-copied").touch()
    (folder / "fail").unlink()
    result, calls = make()
    assert result.returncode == 0, result.stderr
    assert "repairing" in result.stdout
    assert "-m venv" in calls
    assert not (folder / ".venv" / "half-copied").exists()


def test_somebody_elses_venv_is_left_alone(clone):
    folder, make = clone
    (folder / ".venv").mkdir()
    (folder / ".venv" / "mine").touch()
    result, calls = make()
    assert result.returncode != 0
    assert "not made by this Makefile" in result.stdout
    assert (folder / ".venv" / "mine").exists()
    assert calls == ""


def test_flavours(clone):
    _, make = clone
    result, calls = make("install", "FLAVOUR=cuda")
    assert result.returncode == 0, result.stderr
    assert "-e .[cuda,dev]" in calls
    assert "torch==2.13.0,!=2.13.0+cpu" in calls
    assert "uninstall" not in calls
    assert make("install", "FLAVOUR=tpu")[0].returncode != 0
    assert "-e .[cpu,dev]" in make("install", "FLAVOUR=cpu")[1]  # another flavour is another install


def driver(folder, says):
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / "nvidia-smi").chmod(0o755)


@pytest.mark.parametrize("says", ["570.86.15", "NVIDIA-SMI has failed because it could not talk to the driver."])
def test_a_driver_too_old_for_cuda_13_is_refused_before_anything_is_fetched(clone, says):
    folder, make = clone
    driver(folder, says)
    for target in ("install", "demo", "test"):
        result, calls = make(target, "FLAVOUR=cuda")
        assert result.returncode != 0
        assert f"error: the NVIDIA driver is {says}, and CUDA 13 needs 580: update it" in result.stdout
        assert calls == ""
    assert make("install", "FLAVOUR=cpu")[0].returncode == 0


@pytest.mark.parametrize(("says", "note"), [("580.65.06\n580.65.06", ""), ("", "note: no NVIDIA driver here")])
def test_a_driver_that_is_new_enough_or_elsewhere_is_no_obstacle(clone, says, note):
    folder, make = clone
    driver(folder, says)
    result, calls = make("install", "FLAVOUR=cuda")
    assert result.returncode == 0, result.stderr
    assert ("note" in result.stdout) == bool(note)
    assert note in result.stdout
    assert "-e .[cuda,dev]" in calls


def test_what_kernels_are_built_with_is_looked_for_before_anything_is_fetched(clone):
    folder, make = clone
    assert make("install", "FLAVOUR=cuda", "CC=no-such-cc")[0].returncode == 0  # to run on another machine
    driver(folder, "580.65.06")
    result, calls = make("demo", "FLAVOUR=cuda", "CC=no-such-cc")
    assert result.returncode != 0
    assert "error: there is no no-such-cc, and kernels for GPUs are built with it: apt-get install gcc" in result.stdout
    assert calls == ""
    (folder / "no-header").touch()
    result, calls = make("demo", "FLAVOUR=cuda")
    assert result.returncode != 0
    assert "error: there is no /usr/include/Python.h, and kernels" in result.stdout
    assert calls == ""
    assert make("install", "FLAVOUR=cpu", "CC=no-such-cc")[0].returncode == 0  # what it runs is built already


def test_what_is_compiled_stays_in_the_clone(clone):
    folder, make = clone
    python = folder / "python-stand-in"
    python.write_text(python.read_text() + "env > environment\n")
    assert make("demo")[0].returncode == 0
    environment = dict(line.split("=", 1) for line in (folder / "environment").read_text().splitlines() if "=" in line)
    assert environment["FLASHINFER_WORKSPACE_BASE"] == str(folder)  # it adds .cache itself
    for name in CACHES.keys() - {"FLASHINFER_WORKSPACE_BASE"} | {"XDG_CACHE_HOME"}:
        assert environment[name].startswith(f"{folder}/.cache"), name


def test_outside_make_it_is_kept_together_for_its_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRITON_HOME", "/nowhere")
    monkeypatch.setenv("CUDA_CACHE_PATH", "/mine")
    server = ServerEngine(str(POCKET), "float32", 128, "log").environment
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    assert {name: os.environ[name] for name in CACHES} == {
        name: str(tmp_path / "oblr" / folder) for name, folder in CACHES.items()
    } | {"CUDA_CACHE_PATH": "/mine"}
    assert knobs.cache.dir == str(tmp_path / "oblr" / "triton")
    assert str(tmp_path / "oblr" / "vllm") == envs.VLLM_CACHE_ROOT


def test_a_torch_without_cuda_is_no_cuda_install(clone):
    folder, make = clone
    (folder / "no-cuda").touch()
    result, _ = make("install", "FLAVOUR=cuda")
    assert result.returncode != 0
    assert "error: pip installed a torch without CUDA: take" in result.stdout
    (folder / "no-cuda").unlink()
    result, calls = make("install", "FLAVOUR=cuda")
    assert result.returncode == 0, result.stderr
    assert "repairing" in result.stdout  # that torch would satisfy pip
    assert "-m venv" in calls
    assert make("install", "FLAVOUR=cuda")[1] == ""


def test_what_the_code_needs_does_not_come_through_its_tests():
    with_tests = needed([*EXTRAS["train"], *EXTRAS["cpu"], *EXTRAS["dev"]])
    without = needed([*EXTRAS["train"], *EXTRAS["cpu"]])
    names = {name.split(".")[0] for path in sources(ROOT) for name in imported(path)} - sys.stdlib_module_names
    for name in names & PROVIDERS.keys() - {"oblr", "callbacks"}:
        packages = {canonicalize_name(package) for package in PROVIDERS[name]}
        assert packages & without, f"{name} comes with {packages}"
    # transformers loads onto a device only where accelerate is.
    assert "accelerate" in without
    assert with_tests - without >= {"trl", "opacus"}


def test_pins_are_what_is_installed():
    for requirement in [*PYPROJECT["dependencies"], *EXTRAS["train"], *EXTRAS["dev"]]:
        pin = Requirement(requirement)
        assert version(pin.name).partition("+")[0] in pin.specifier, requirement


@pytest.mark.parametrize(("gpu", "workers"), [(True, 1), (False, 2)])
def test_engines_of_two_workers_do_not_share_a_gpu(tmp_path, gpu, workers):
    (tmp_path / "machine.py").write_text(
        "import torch\n"
        f"torch.cuda.is_available = lambda: {gpu}\n"
        "def pytest_configure(config):\n    print('workers', config.option.numprocesses)\n"
    )
    command = ["tests/helpers/pytest_alone.py", "-p", "machine", "--collect-only", "tests/commands/test_text.py"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = warm.run(command, ROOT, os.environ | {"PYTHONPATH": path}, timeout=120)
    assert f"workers {workers}\n" in done.stdout


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "src").glob("*.py")))
def test_a_script_outside_the_environment_says_what_to_do(script):
    bare = [sys.executable, "-E", "-S", f"src/{script}", "experiment=pocket"]  # Python without any package
    done = subprocess.run(bare, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"error: .* has no (hydra|torch) \(activate the environment: source \.venv/bin/activate;.*\)\n", done.stderr
    )
