"""What we use of vLLM is what ``make contract`` checks, and the check notices what changes."""

import ast
import json
import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatchcase

import pytest
from conftest import ROOT
from contract import OLDEST, check, installed, pinned, table
from contract_uses import APART, Module, uses

ROUTES = "vllm/entrypoints/rl/online/api_router.py"
ROLLOUT = ROOT / "src" / "oblr" / "rollout"


def test_all_that_is_used_is_checked():
    rows, ours = table()
    covered = set().union(*(row.uses() for row in rows))
    unchecked = {
        use: files
        for use, files in uses(ROLLOUT).items()
        if use not in covered and not any(fnmatchcase(use, pattern) for pattern in ours)
    }
    assert not unchecked, f"add rows to benchmarks/contract.yaml: {unchecked}"


def test_what_is_checked_is_used():
    used = uses(ROLLOUT)
    rows, ours = table()
    unused = [pattern for pattern in ours if not any(fnmatchcase(use, pattern) for use in used)]
    for row in rows:
        owners = row.owners or tuple(row.route.split()[1:])
        unused += [use for use in (row.route, *row.flags) if use and use not in used]
        unused += [f"{row.at} {name}" for name in row.has if owners and used.keys().isdisjoint(names(owners, name))]
    assert not unused, f"take them out of benchmarks/contract.yaml: {unused}"


def names(owners, name):
    return {f"{owner}.{name}" for owner in owners}


def test_rooms_that_are_left_out_know_nothing_of_vllm():
    for name in APART:
        text = (ROLLOUT / name).read_text()
        assert not re.search(r"(import|from) (vllm|oblr\.rollout\.(client|vllm|server|transfer))\b", text), name


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from vllm import LLM\nLLM(colour=1)", {"vllm.LLM", "LLM(colour)"}),
        ("from vllm.a import f\nx = f(1)\nx.b.c", {"vllm.a.f", "x.b", "b.c"}),
        ("def g(model: Any):\n    for layer in model.layers:\n        layer.w", {"model.layers", "layer.w"}),
        ("class A:\n    def f(self):\n        self._llm: Any = None\n        self._llm.wake_up(tags=['w'])",
         {"llm.wake_up", "wake_up(tags)", '"w"'}),
        ("r = client.post('/a/b', c=1)['d']", {"POST /a/b", "/a/b", "/a/b(c)", "/a/b.d"}),
        ("client.get('/a?b=json')", {"GET /a", "/a(b)"}),
        ("post('/a', body={'x': 'y'})", {"/a", "body.x", '"y"'}),
        ("x = ['--flag', 'VLLM_NAME', 'vllm.a.b']", {"--flag", "env.VLLM_NAME", "vllm.a.b"}),
        ("from vllm.a import Base\nclass B(Base):\n    c = 1\n    def d(self):\n        self.e",
         {"vllm.a.Base", "Base.c", "Base.d", "Base.e"}),
        ("choice['logprobs']['content']", {"choice.logprobs", "logprobs.content"}),
        ("(config['a'] or {}).get('b')", {"config.a", "a.b"}),
    ],
)  # fmt: skip
def test_kinds_of_use(code, found):
    assert set(Module(ast.parse(code)).uses()) == found


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
    rows = [row for row in table()[0] if row.at.startswith(path) and row.applies_to(pinned())]
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
    paths = {row.at.partition("::")[0] for row in table()[0]} - {"vllm/logprobs.py"}
    clone = tmp_path / "clone"
    for name in ("benchmarks", "src/oblr/rollout"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", clone)
    (clone / ".cache" / "wheels").mkdir(parents=True)
    with zipfile.ZipFile(clone / ".cache" / "wheels" / "vllm-0.99.0-cp38-abi3-linux_x86_64.whl", "w") as wheel:
        for path in paths:
            wheel.write(root / path, path)
    command = [sys.executable, "benchmarks/contract.py", "0.99.0"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "vLLM 0.99.0: vllm/logprobs.py::FlatLogprobs is not there"
