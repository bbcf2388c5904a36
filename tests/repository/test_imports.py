"""Imports run one way: shared vocabulary ← run ← leaf rooms ← policy, rollout, evaluation ← callbacks, commands."""

from pathlib import Path

import pytest
from conftest import ROOT
from rooms import SCRIPTS, arrows, imported, room, sources, table

BASE = {"errors", "kinds", "problem", "batch", "kernels"}
LEAVES = {"gradnorm", "baselines", "losses", "schedules", "rewards", "data", "metrics"}
#: room → rooms that it may import from
ALLOWED = {
    "errors": set(),
    "kinds": {"errors"},
    "problem": set(),
    "kernels": set(),
    "batch": {"problem", "kernels"},
    **dict.fromkeys(LEAVES, BASE),
    "metrics": set(),
    "run": {"errors", "kinds", "metrics"},
    "record": {"run", "metrics", "batch"},
    "statistics": BASE | {"gradnorm", "baselines"},
    "doctor": {"errors", "statistics", "record", "run"},
    "answers": set(),
    "rewards": BASE | {"run", "answers"},
    "data": BASE | {"run"},
    "policy": BASE | {"run", "gradnorm", "baselines", "losses", "schedules"},
    "rollout": BASE | {"run", "data", "rewards", "policy"},
    "evaluation": BASE | {"run", "data", "rewards", "metrics"},
    "plan": BASE | {"run", "gradnorm", "baselines", "losses", "schedules", "policy", "rollout"},
    "callbacks": BASE | LEAVES | {"run", "record", "policy", "rollout", "evaluation", "statistics", "doctor"},
    "settings": {"errors", "kinds"},
    "report": BASE | {"run", "record", "metrics", "evaluation", "doctor"},
    "commands": BASE | LEAVES | {"run", "policy", "rollout", "evaluation", "plan", "record", "settings", "report"},
    SCRIPTS: {"commands", "doctor"},
}
#: package → the only places that may import it
ONLY_IN = {
    "vllm": {f"rollout/{name}.py" for name in ("vllm", "cpu_worker", "layers", "transfer", "nccl")},
    "hydra": {"commands"},
    "omegaconf": {"commands", "settings"},
    "peft": {"policy/adapter.py"},
    "lightning": {
        *("policy/step.py", "policy/logged.py", "policy/pretraining.py", "rollout/datamodule.py", "rollout/live.py"),
        *("run/strategies.py", "record/logger.py", "record/shown.py", "record/going_on.py", "commands", "callbacks"),
    },
}


def test_rooms_import_only_what_lies_below_them():
    graph = arrows(ROOT)
    assert graph.keys() == ALLOWED.keys()
    assert {name: graph[name] - ALLOWED[name] for name in ALLOWED} == {name: set() for name in ALLOWED}
    said = table(ROOT).splitlines()[-1]
    assert said.endswith("none runs upwards")
    assert said.partition(";")[0] in (ROOT / "CONTRIBUTING.md").read_text()


def test_a_circle_is_found(tmp_path):
    for name, text in {"a/one": "from oblr.b import two", "b/two": "import oblr.c", "c": "import oblr.a.one"}.items():
        path = tmp_path / "src" / "oblr" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    circles = ("a → b → c → a", "b → c → a → b", "c → a → b → c")
    assert table(tmp_path).endswith(tuple(f"3 rooms, 3 arrows; these run in a circle: {circle}" for circle in circles))


def test_nothing_takes_kernels_by_name():
    """A plan answers in the module's place."""
    assert {path.name for path in sources(ROOT) for name in imported(path) if name.startswith("oblr.kernels.")} == set()


@pytest.mark.parametrize("package", ONLY_IN)
def test_heavy_packages_stay_in_their_rooms(package):
    def place(path: Path) -> str:
        here = room(path, ROOT)
        return here if here in ONLY_IN[package] else str(path.relative_to(ROOT / "src")).removeprefix("oblr/")

    found = {place(path) for path in sources(ROOT) if any(name.split(".")[0] == package for name in imported(path))}
    assert found <= ONLY_IN[package]
    assert found


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_nothing_but_studies_imports_studies():
    """They may use the product, and what benchmarks and tests share; none of these may need a study."""
    studies = {"studies", *(path.stem for path in files("studies"))}
    assert {"contest", "tiers"} < studies
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*sources(ROOT), *files("benchmarks", "tests")]
        for name in imported(path)
        if name.split(".")[0] in studies
    }
    assert found == set()


def test_what_is_imported_is_there():
    """In benchmarks, studies and tests too, some of which run only when they are asked for."""
    missing = set()
    for path in [*sources(ROOT), *files("benchmarks", "studies", "tests")]:
        for name in imported(path):
            *module, _ = name.split(".")
            place = (ROOT / "src").joinpath(*module)
            if module[:1] == ["oblr"] and not (place.is_dir() or place.with_suffix(".py").is_file()):
                missing.add(f"{path.name}: {name}")
    assert missing == set()
