"""How the numbers of a step reach the loggers."""

from typing import Any

import lightning as L
import torch


class LogsOnce(L.LightningModule):
    """Gives every logger all numbers of a step together, in one call.

    There is nothing to average over a step, and Lightning's own metric for each number takes longer than all else that
    an observer does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, float] = {}

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """A number of this step, the same on all ranks; whatever else Lightning would take is of no use here."""
        self.logged[name] = float(value)

    def on_train_batch_end(self, *args: Any) -> None:
        """Lightning calls it after the callbacks'."""
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self.logged.items()})
        for logger in self.trainer.loggers:
            logger.log_metrics(self.logged, step=self.current_epoch + 1)  # the first step is 1
            logger.save()
        self.logged = {}
