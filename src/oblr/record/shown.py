"""Histograms and tables, by whichever logger a run has.

A logger that has no place for one leaves it out: all numbers are in ``metrics.jsonl`` and all responses in
``rollouts/``, whatever the logger.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lightning import Trainer
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from oblr.run.plain import verbatim


def tensorboard(trainer: Trainer) -> SummaryWriter | None:
    """The run's TensorBoard writer; None without that logger, and on all ranks but the first."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, TensorBoardLogger):
            return logger.experiment
    return None


@dataclass(frozen=True)
class Rows:
    """A table: names of columns, and a text for each of them in every row."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """Texts stay texts: no markup in them does anything, and each stays in its cell."""
        head, *rows = [tuple(map(_cell, row)) for row in (self.columns, *self.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---",) * len(head), *rows])


def show(trainer: Trainer, tag: str, content: Tensor | Rows) -> None:
    """Give every logger the histogram of a tensor of numbers, any shape, or a table; of the step being taken."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        for kind, (histogram, table) in WAYS.items():
            if isinstance(logger, kind):
                way = table if isinstance(content, Rows) else histogram
                way(logger, tag, content, trainer.current_epoch + 1)


#: All that Markdown or HTML might read something into, whatever its dialect: what is no letter, digit or space.
_ACTIVE = re.compile(r"[!-/:-@\[-`{-~]")
#: Of which these mean nothing inside of a line.
_PASSIVE = frozenset(",.;?'\"%+-")


def _cell(text: str) -> str:
    """Characters by their numbers, which every reader of Markdown and HTML shows and none acts on."""
    lines = verbatim(text).expandtabs(4).split("\n")
    return "<br>".join(_ACTIVE.sub(_numbered, line).replace("  ", "&#160; ") for line in lines)


def _numbered(found: re.Match[str]) -> str:
    return found[0] if found[0] in _PASSIVE else f"&#{ord(found[0])};"


def _tensorboard_histogram(logger: TensorBoardLogger, tag: str, values: Tensor, step: int) -> None:
    logger.experiment.add_histogram(tag, values.flatten(), step)


def _tensorboard_table(logger: TensorBoardLogger, tag: str, table: Rows, step: int) -> None:
    logger.experiment.add_text(tag, table.markdown(), step)


def _wandb_histogram(logger: WandbLogger, tag: str, values: Tensor, step: int) -> None:
    from wandb import Histogram

    logger.log_metrics({tag: Histogram(values.flatten().tolist())}, step)  # type: ignore[dict-item]


def _wandb_table(logger: WandbLogger, tag: str, table: Rows, step: int) -> None:
    logger.log_table(tag, list(table.columns), [list(row) for row in table.rows], step=step)


def _mlflow_histogram(logger: MLFlowLogger, tag: str, values: Tensor, step: int) -> None:
    counts, edges = np.histogram(values.flatten().numpy(), bins="auto")
    shown = {"edges": edges.tolist(), "counts": counts.tolist()}
    logger.experiment.log_dict(logger.run_id, shown, f"{tag}/step{step:05d}.json")


def _mlflow_table(logger: MLFlowLogger, tag: str, table: Rows, step: int) -> None:
    logger.experiment.log_text(logger.run_id, table.markdown(), f"{tag}/step{step:05d}.md")


#: Logger → how it shows a histogram, and a table.
WAYS: dict[type[Any], tuple[Callable[..., None], Callable[..., None]]] = {
    TensorBoardLogger: (_tensorboard_histogram, _tensorboard_table),
    WandbLogger: (_wandb_histogram, _wandb_table),
    MLFlowLogger: (_mlflow_histogram, _mlflow_table),
}
