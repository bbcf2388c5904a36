"""What ``make contract`` checks of vLLM is there, and the check notices what changes."""

import json
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT
from contract import OLDEST, check, installed, pinned, table

ROUTES = "vllm/entrypoints/rl/online/api_router.py"


@pytest.fixture(scope="module")
def root():
    folder, version = installed()
    assert version == pinned()
    return folder


def test_the_installed_vllm_keeps_the_contract(root):
    assert check(root, pinned()) == []


@pytest.mark.parametrize(
    ("path", "old", "new", "lack"),
    [
        ("vllm/entrypoints/llm.py", "def wake_up(self, tags:", "def wake_up(self, parts:", "does not take tags"),
        ("vllm/entrypoints/llm.py", "    def sleep(", "    def rest(", "LLM has no sleep"),
        (ROUTES, '"/update_weights"', '"/new_weights"', "serve POST /update_weights"),
        (ROUTES, "    weight_version: Anno", "    version: Anno", "take weight_version"),
        ("vllm/engine/arg_utils.py", '"--worker-extension-cls"', '"--worker-class"', "has no --worker-extension-cls"),
        ("vllm/entrypoints/launchers/cli_args.py", "    enable_scale_out:", "    scale_out:", "no --enable-scale-out"),
        ("vllm/envs.py", '    "VLLM_SERVER_DEV_MODE": lambda', '    "VLLM_DEV": lambda', "no VLLM_SERVER_DEV_MODE"),
        ("vllm/v1/engine/core.py", '"scheduling"', '"schedule"', "does not know scheduling"),
        ("vllm/v1/worker/gpu/sample/states.py", "if seed is None:", "if not seed:", "does not say if seed is None"),
        ("vllm/sampling_params.py", "    detokenize: bool", "    decode: bool", "does not take detokenize"),
        ("vllm/outputs.py", "    version: str", "    label: str", "WeightVersionSpan has no version"),
        ("vllm/v1/worker/gpu_model_runner.py", "        weights_iterator:", "        weights:", "weights_iterator"),
    ],
)  # fmt: skip
def test_a_changed_vllm_breaks_the_contract(root, tmp_path, path, old, new, lack):
    rows = [row for row in table() if row.at.startswith(path) and row.applies_to(pinned())]
    text = (root / path).read_text()
    assert old in text
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text.replace(old, new))
    broken = [lack for row in rows for lack in row.missing(tmp_path)]
    assert any(lack in line for line in broken)
    assert len(broken) <= 2


def test_the_committed_result_is_of_the_pinned_version():
    result = json.loads((ROOT / "benchmarks" / "results" / "contract.json").read_text())
    assert [pinned(), OLDEST] == list(result["wheels"]) == list(result["broken"])
    assert not any(result["broken"].values())


def test_the_command_fails_where_a_wheel_has_changed(root, tmp_path):
    """A wheel of another version lies where pip would have put it."""
    paths = {row.at.partition("::")[0] for row in table()} - {"vllm/logprobs.py"}
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "benchmarks", clone / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", clone)
    (clone / ".cache" / "wheels").mkdir(parents=True)
    with zipfile.ZipFile(clone / ".cache" / "wheels" / "vllm-0.99.0-cp38-abi3-linux_x86_64.whl", "w") as wheel:
        for path in paths:
            wheel.write(root / path, path)
    command = [sys.executable, "benchmarks/contract.py", "0.99.0"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "vLLM 0.99.0: vllm/logprobs.py::FlatLogprobs is not there"
