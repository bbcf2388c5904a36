"""The files of responses that a run has kept."""

from pathlib import Path


def step_of(path: Path) -> int:
    """The step whose responses a file has."""
    return int(path.name.split("-")[1])


def files_of_steps(folder: Path) -> dict[int, list[Path]]:
    """The steps whose responses were kept, in their order, from 1, with a file of each rank."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("step-*.jsonl.gz")):
        found.setdefault(step_of(path), []).append(path)
    return {step + 1: files for step, files in found.items()} if 0 in found else found  # of an earlier version
