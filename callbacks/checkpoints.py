"""When a run saves itself, and what it keeps."""

import shutil
from pathlib import Path

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from oblr.kinds import Count, checked
from oblr.record.shown import tensorboard
from oblr.run.manifest import Order, next_attempt, outdated


@checked("callbacks.checkpoints")
class Checkpoints(Checkpoint):
    """Saves every ``every`` steps, after the last one, and after the one that a signal has ended the run with.

    Args:
        dirpath: folder of the checkpoints, ``step-<steps done>.ckpt`` each.
        every: steps between two of them.
        keep: how many to keep, the newest; older ones go when a new one has been read back from the disk. Those of
            later steps, which a run that has gone back to an earlier one has left behind, stay until it is there again.

    Attributes:
        attempt: a number of the run that grows each time that it goes on; by it, and then by step, checkpoints are
            ordered.
    """

    def __init__(self, dirpath: str, every: Count, keep: Count = 2):
        self.folder, self.every, self.keep = Path(dirpath), every, keep
        self.attempt = 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.attempt = max(self.attempt, next_attempt(self.folder))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = trainer.current_epoch + 1
        if done % self.every == 0 or done == trainer.max_epochs or trainer.should_stop:
            if writer := tensorboard(trainer):
                writer.flush()  # a run that goes on from here does not log these steps again
            order = Order(self.attempt, done)
            trainer.save_checkpoint(self.folder / f"step-{done:05d}.ckpt", storage_options=order)
            if trainer.is_global_zero:
                for path in outdated(self.folder, self.keep):
                    path.unlink() if path.is_symlink() else shutil.rmtree(path)
