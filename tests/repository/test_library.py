"""The library, which any trainer can use: it needs torch and transformers, and is quick to import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from packages import PROVIDERS, REQUIREMENTS, needed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rooms import arrows, imported, room, sources

ROOMS = {
    *("statistics", "gradnorm", "baselines", "schedules", "losses", "batch"),
    *("errors", "kinds", "kernels", "problem"),
}
FILES = [path for path in sources(ROOT) if room(path, ROOT) in ROOMS]


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


#: Given modules that are not to be found, imports others one by one: which fail, and what of others' comes with them.
IMPORTING = """
import importlib, json, sys
hidden, wanted = json.loads(sys.stdin.read())
sys.modules.update(dict.fromkeys(hidden))
import torch
before, failed = set(sys.modules), {}
for name in wanted:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
new = {name for name in set(sys.modules) - before if name.split(".")[0] not in {"oblr", *sys.stdlib_module_names}}
print(json.dumps([failed, sorted(new)]))
"""


@pytest.fixture(scope="module")
def alone():
    """Imports modules in a process that has nothing but what torch and transformers bring."""
    allowed = needed(REQUIREMENTS)
    assert {"torch", "transformers", "numpy", "safetensors"} <= allowed
    others = {name for name, own in PROVIDERS.items() if allowed.isdisjoint(map(canonicalize_name, own))}
    assert {"lightning", "hydra", "omegaconf", "datasets", "vllm"} <= others
    hidden = sorted({"callbacks", *others} - {"oblr", *sys.stdlib_module_names})

    def run(modules):
        given = json.dumps([hidden, modules])
        command = [sys.executable, "-c", IMPORTING]
        environment = {"PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_every_module_imports_beside_torch_and_transformers_and_brings_nothing_of_others(alone):
    """So it takes no longer to import than its own files do: they import no part of torch that torch does not."""
    modules = [module(path) for path in FILES]
    assert {"oblr.statistics.log", "oblr.gradnorm.measure", "oblr.baselines", "oblr.kinds"} <= {*modules}
    assert alone(modules) == [{}, []]


def test_a_module_that_needs_more_is_named(alone):
    failed, _ = alone(["oblr.kinds", "oblr.policy.step", "callbacks"])
    assert failed.keys() == {"oblr.policy.step", "callbacks"}
    assert "lightning" in failed["oblr.policy.step"]


def test_the_library_names_nothing_but_what_it_requires():
    """What comes with transformers may be gone with its next release."""
    required = {Requirement(line).name for line in REQUIREMENTS}
    others = {
        f"{module(path)}: {name}"
        for path in FILES
        for name in imported(path)
        if name.split(".")[0] not in {"oblr", *required, *sys.stdlib_module_names}
    }
    assert others == set()
    graph = arrows(ROOT)
    assert {name: graph[name] - ROOMS for name in ROOMS} == {name: set() for name in ROOMS}
