"""The set-up: one source of pins, and an install that knows when it was interrupted."""

import re
import subprocess
import tomllib

import pytest
import yaml
from conftest import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PYPROJECT["optional-dependencies"]


def test_environment_yml_has_the_pins_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    pins = [*PYPROJECT["dependencies"], *EXTRAS["cuda"], *EXTRAS["dev"]]
    assert pip == [*pins, "--editable ."]
    assert f"python{PYPROJECT['requires-python']}" in environment["dependencies"]


def test_everything_is_pinned():
    for requirement in [*PYPROJECT["dependencies"], *EXTRAS["cpu"], *EXTRAS["cuda"], *EXTRAS["dev"]]:
        assert re.fullmatch(r"[\w-]+(\[\w+\])?==[\d.]+", requirement), requirement


@pytest.fixture
def clone(tmp_path):
    """A clone whose python is a stand-in that only records what it is asked to install."""
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    python = tmp_path / "python-stand-in"
    python.write_text(
        "#!/bin/sh\n"
        'echo "$@" >> calls\n'
        'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp python-stand-in "$3/bin/python"; fi\n'
        '[ ! -e fail ] || case "$*" in *"-e ."*) exit 1;; esac\n'
    )
    python.chmod(0o755)

    def make(target="install", *variables):
        (tmp_path / "calls").unlink(missing_ok=True)
        result = subprocess.run(
            ["make", target, "PYTHON=./python-stand-in", "FLAVOUR=cpu", *variables],
            cwd=tmp_path,
            capture_output=True,
            text=True,
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
    assert "+cpu" not in calls
    assert "uninstall" not in calls
    assert make("install", "FLAVOUR=tpu")[0].returncode != 0
    assert "-e .[cpu,dev]" in make("install", "FLAVOUR=cpu")[1]  # another flavour is another install
