"""Every number that a run logs, in one file of its folder, whatever else it logs to."""

import json
import math
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from oblr.record.curves import METRICS, OF_STEP, logged
from oblr.run.disk import write_whole


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
            kept = [line for line in logged(self.path) if line["step"] + (OF_STEP not in line) <= done]
            write_whole(self.path, "".join(json.dumps(line) + "\n" for line in kept))
