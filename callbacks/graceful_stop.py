"""Ctrl-C ends a run after the step under way, with a checkpoint."""

import signal
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class GracefulStop(Callback):
    """On SIGINT or SIGTERM: finish the step, save ``last.ckpt``, stop. A second one stops at once.

    Attributes:
        received: the signal that ended the run, if one did.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        def handle(number: int, frame: FrameType | None) -> None:
            if self.received is not None:
                raise KeyboardInterrupt
            self.received = signal.Signals(number)
            trainer.should_stop = True

        self.previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.received is not None:
            checkpoint: Any = trainer.checkpoint_callback
            assert isinstance(checkpoint, ModelCheckpoint)
            trainer.save_checkpoint(f"{checkpoint.dirpath}/last.ckpt")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for number, handler in getattr(self, "previous", {}).items():
            signal.signal(number, handler)
