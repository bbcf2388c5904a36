"""When a run saves itself, and what it keeps."""

import shutil
from pathlib import Path

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from callbacks.observer import tensorboard
from oblr.errors import SettingError
from oblr.run.manifest import by_age


class Checkpoints(Checkpoint):
    """Saves every ``every`` steps, after the last one, and after the one that a signal has ended the run with.

    Args:
        dirpath: folder of the checkpoints, ``step-<steps done>.ckpt`` each.
        every: steps.
        keep: how many to keep, the newest; older ones go when a new one is complete.

    Raises:
        SettingError: not a count.
    """

    def __init__(self, dirpath: str, every: int, keep: int = 1):
        for setting, value in (("every", every), ("keep", keep)):
            if value < 1:
                raise SettingError(f"callbacks.checkpoints.{setting}", f"{value} is not a count", "use at least 1")
        self.folder, self.every, self.keep = Path(dirpath), every, keep

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = trainer.current_epoch + 1
        if done % self.every == 0 or done == trainer.max_epochs or trainer.should_stop:
            if writer := tensorboard(trainer):
                writer.flush()  # a run that goes on from here does not log these steps again
            trainer.save_checkpoint(self.folder / f"step-{done:05d}.ckpt")
            if trainer.is_global_zero:
                own = set(self.folder.glob("step-*.ckpt*"))  # whatever else is there is the user's
                kept = [path for path in by_age(self.folder) if path in own][-self.keep :]
                for path in own.difference(kept):
                    shutil.rmtree(path)
