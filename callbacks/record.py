"""Every number that a run logs, in one file of its folder, whatever else it logs to."""

import json
import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from oblr.run.provenance import write_whole

#: Of a curve, its steps and values.
Curve = tuple[list[int], list[float]]
#: In a run folder.
METRICS = "metrics.jsonl"
#: Logged with every step, and with nothing that comes between steps.
OF_STEP = "train/lr"


class RunRecord(Logger):
    """Writes ``metrics.jsonl``: a line of ``{"step": t, "<tag>": value, …}`` for whatever is logged together.

    The first step is 1. An evaluation stands at the number of steps that the policy has taken: 0 before the first.

    Summary, report and ``finished.json`` read it, so that they do not depend on ``logger``. JSON knows neither NaN nor
    infinity: they are null.

    Args:
        save_dir: the run folder.
    """

    def __init__(self, save_dir: str):
        super().__init__()
        self.path = Path(save_dir, METRICS)
        self.held: list[str] | None = None

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return METRICS

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        numbers = {tag: value if math.isfinite(value) else None for tag, value in metrics.items()}
        self.write(json.dumps({"step": step, **numbers}) + "\n")

    def write(self, line: str) -> None:
        if self.held is not None:
            return self.held.append(line)
        with self.path.open("a") as file:
            file.write(line)

    def hold(self) -> None:
        """Keep from the file what is logged from now on, until :meth:`release`."""
        self.held = []

    @rank_zero_only
    def release(self, done: int) -> None:
        """Go back to so many steps, and write what has been held."""
        held, self.held = self.held or [], None
        self.go_back(done)
        for line in held:
            self.write(line)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """They are in ``config.yaml``."""

    @rank_zero_only
    def go_back(self, done: int) -> None:
        """Take back what a run has logged after so many steps, which it logs again: evaluations after them, too."""
        if self.path.exists():
            kept = [line for line in _lines(self.path) if line["step"] + (OF_STEP not in line) <= done]
            write_whole(self.path, "".join(json.dumps(line) + "\n" for line in kept))


def read_curves(folder: Path) -> dict[str, Curve]:
    """All scalars of a run: tag → (steps, values), without those that are not finite.

    Where held-out rewards have turned out to be others than 0 and 1, what was called their accuracy is their mean.
    """
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for line in _lines(folder / METRICS):
        step = line.pop("step")
        for tag, value in line.items():
            if value is not None:
                points[tag][step] = value
    for tag in [tag for tag in points if tag.startswith("eval/") and tag.endswith("_reward")]:
        points[tag] |= points.pop(f"{tag.removesuffix('reward')}accuracy", {})
    return {tag: (sorted(values), [values[step] for step in sorted(values)]) for tag, values in points.items()}


def _lines(path: Path) -> list[dict[str, Any]]:
    """A last line that a killed run has not written whole is left out; steps that count from 0 are told from 1 on."""
    written = path.read_text().splitlines(keepends=True) if path.exists() else []
    lines = [json.loads(line) for line in written if line.endswith("\n")]
    if any(line["step"] == 0 and OF_STEP in line for line in lines):  # of an earlier version
        lines = [line | {"step": line["step"] + (OF_STEP in line)} for line in lines]
    return lines
