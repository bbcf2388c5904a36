"""Imports run one way: types ← leaf rooms ← policy, rollout ← callbacks ← scripts."""

import ast
from pathlib import Path

import pytest
from conftest import ROOT

BASE = {"errors", "problem", "types", "packing", "segments", "timing", "prompts", "kernels"}
LEAVES = {"gradnorm", "baselines", "losses", "schedules", "rewards", "data", "metrics"}
#: room → rooms of oblr that it may import, besides itself
ALLOWED = {
    "errors": set(),
    "problem": set(),
    "types": {"problem"},
    "segments": {"kernels"},
    "packing": {"types", "kernels", "segments"},
    "timing": set(),
    "kernels": set(),
    "prompts": {"errors"},
    "terminal": set(),
    "provenance": set(),
    "randomness": set(),
    "processes": {"errors", "terminal"},
    "ranks": set(),
    "checkpoint": {"errors", "ranks"},
    "strategies": {"checkpoint", "ranks"},
    "sweeps": BASE | {"metrics", "provenance"},
    **dict.fromkeys(LEAVES, BASE),
    "rewards": BASE | {"processes"},
    "attention": BASE | {"gradnorm"},
    "fused": BASE | {"gradnorm"},
    "model": BASE | {"gradnorm", "attention", "fused", "ranks"},
    "pretraining": BASE,
    "reference": BASE | {"model", "losses"},
    "plan": BASE
    | {"attention", "fused", "model", "reference", "gradnorm", "baselines", "losses", "schedules", "policy", "rollout"},
    "policy": BASE
    | {
        "ranks",
        "randomness",
        "attention",
        "fused",
        "model",
        "reference",
        "gradnorm",
        "baselines",
        "losses",
        "schedules",
    },
    "rollout": BASE | {"model", "randomness", "ranks", "rewards", "terminal"},
    "evaluation": BASE | {"metrics", "provenance", "randomness", "rewards"},
    "checks": BASE | {"checkpoint", "model", "baselines", "losses", "schedules"},
    "callbacks": BASE | LEAVES | {"checkpoint", "randomness", "ranks", "policy", "rollout", "evaluation"},
}
SCRIPTS = {"train.py", "eval.py", "pretrain.py", "sweep.py", "snapshot.py", "planning.py", "serve.py", "launch.py"}
#: package → the only places that may import it
ONLY_IN = {
    "vllm": {"rollout/vllm.py", "rollout/layers.py", "rollout/transfer.py", "rollout/nccl.py"},
    "hydra": SCRIPTS,
    "omegaconf": SCRIPTS,
    "lightning": {
        *("policy.py", "pretraining.py", "rollout/datamodule.py", "strategies.py"),
        *("train.py", "pretrain.py", "callbacks"),
    },
}


def sources() -> list[Path]:
    return [*(ROOT / "src").rglob("*.py"), *(ROOT / "callbacks").glob("*.py")]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room(path: Path) -> str | None:
    if path.parent.name == "callbacks":
        return "callbacks"
    parts = path.relative_to(ROOT / "src").parts
    return parts[1].removesuffix(".py") if parts[0] == "oblr" and parts[1] != "__init__.py" else None


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_import_only_what_lies_below_them(path):
    if (here := room(path)) is None:  # scripts may import everything
        return
    used = {name.split(".")[1] for name in imported(path) if name.startswith("oblr.")}
    assert used - {here} <= ALLOWED[here]
    if here != "callbacks":
        assert not any(name.split(".")[0] == "callbacks" for name in imported(path))


@pytest.mark.parametrize("package", ONLY_IN)
def test_heavy_packages_stay_in_their_rooms(package):
    found = set()
    for path in sources():
        if any(name.split(".")[0] == package for name in imported(path)):
            place = path.relative_to(ROOT / "src" if "src" in path.parts else ROOT)
            found.add("callbacks" if place.parts[0] == "callbacks" else str(place).removeprefix("oblr/"))
    assert found <= ONLY_IN[package]
    assert found
