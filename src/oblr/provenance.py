"""What it takes to know later what a run was."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "lightning", "transformers", "hydra-core", "torchmetrics", "datasets", "reasoning-gym")


def revision(root: Path) -> str:
    """Git commit of the code, with ``+changes`` where files differ from it; "unknown" outside a checkout.

    What benchmarks have measured is no code: a new result does not make the next one look changed.
    """
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    status = [*git, "status", "--porcelain", "--", ".", ":!benchmarks/results"]
    changes = subprocess.run(status, capture_output=True, text=True).stdout
    return head.stdout.strip() + ("+changes" if changes else "")


def versions() -> dict[str, str]:
    """Installed version of every package that a result can depend on."""
    from importlib.metadata import packages_distributions

    engine = packages_distributions().get("vllm", [])
    return {name: version(name) for name in (*PACKAGES, *engine)} | {"python": sys.version.split()[0]}


def write_record(folder: Path, root: Path, config: str, **facts: Any) -> None:
    """Write ``config.yaml`` and ``run.json``; a resumed run adds ``config-2.yaml``, ``run-2.json``, and so on."""
    existing = len(list(folder.glob("run*.json")))
    suffix = f"-{existing + 1}" if existing else ""
    (folder / f"config{suffix}.yaml").write_text(config)
    record = {"command": sys.argv, "revision": revision(root), "versions": versions(), **facts}
    (folder / f"run{suffix}.json").write_text(json.dumps(record, indent=2) + "\n")
