"""A callback that times the others: ``+callbacks.cost={_target_: hooks.Cost, journal: …}``."""

import functools
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer

#: These evaluate or save, which is work.
WORKING = ("HeldOutEvaluation", "BenchmarkEvaluation", "Checkpoints")
HOOKS = [name for name in vars(Callback) if name.startswith("on_")]


class Cost(Callback):
    """Times the others of a run, and writes what they took of each step but the first.

    Args:
        journal: a JSON file: of each step its seconds and those of each observer.
    """

    def __init__(self, journal: str):
        self.journal = Path(journal)
        self.since, self.inside = 0.0, False
        self.seconds, self.steps = Counter[str](), list[dict[str, float]]()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if type(callback).__name__ not in WORKING and callback is not self:
                for hook in HOOKS:
                    setattr(callback, hook, self.timed(type(callback).__name__, getattr(callback, hook)))
        # Where the policy hands a step's numbers to the loggers.
        pl_module.on_train_batch_end = self.timed("loggers", pl_module.on_train_batch_end)  # type: ignore[method-assign]
        for logger in trainer.loggers:
            logger.log_metrics = self.timed(type(logger).__name__, logger.log_metrics)  # type: ignore[method-assign]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            outermost, self.inside = not self.inside, True  # a callback may log: its own time holds that
            begun = time.perf_counter()
            result = function(*args, **kwargs)
            if outermost:
                self.seconds[name] += time.perf_counter() - begun
                self.inside = False
            return result

        return call

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.perf_counter()
        if self.since:
            self.steps.append({"step": now - self.since, **self.seconds})
        self.since, self.seconds = now, Counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.journal.write_text(json.dumps(self.steps[1:]))
