"""Delay of all changes to the folder of a run that goes on until its own first update is done."""

from collections.abc import Callable
from typing import Any

from lightning import Callback, LightningModule, Trainer
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from oblr.record.logger import RunRecord
from oblr.record.shown import tensorboard


class GoingOn(Callback):
    """Takes back what the run had logged after its checkpoint, and calls ``begun``, once.

    That is after the first update or, where there is none, at the end: a run that fails before leaves everything as it
    was. It comes before all other callbacks, which log the step.

    Args:
        begun: is given the number of steps that were done before; on rank 0 alone.
    """

    def __init__(self, begun: Callable[[Trainer, int], None]):
        self.begun, self.done = begun, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, RunRecord):
                logger.hold()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.begin(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begin(trainer)

    def begin(self, trainer: Trainer) -> None:
        if self.done:
            return
        self.done, done = True, trainer.current_epoch
        for logger in trainer.loggers:
            if isinstance(logger, RunRecord):
                logger.release(done)
        writer = tensorboard(trainer)
        if writer is not None and done:
            restart = Event(step=done + 1, session_log=SessionLog(status=SessionLog.START))
            writer._get_file_writer().add_event(restart)
        if trainer.is_global_zero:
            self.begun(trainer, done)
