"""A signal ends a run after the step under way, with a checkpoint; under SLURM the job goes back into the queue."""

import signal
from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from oblr.run.manifest import by_age
from oblr.run.ranks import of_run
from oblr.run.stopping import owns, process, waits


class GracefulStop(Callback):
    """On SIGINT, SIGTERM or SIGUSR1 to any rank: finish the step, save, stop all ranks; a second one stops at once.

    Until the first update there is nothing to save: the first one stops at once, too (:mod:`oblr.run.stopping`).

    Attributes:
        received: the signal that ended the run, if one did.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        process.take()  # Lightning has put handlers of its own in between
        self.first = trainer.current_epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch > self.first:
            self.tell(trainer, trainer.current_epoch + 1)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        self.tell(trainer, trainer.current_epoch + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        number = of_run().greatest(process.received or 0)
        if number:
            self.received, trainer.should_stop = signal.Signals(int(number)), True
        owns(None)  # a step is worth keeping
        self.tell(trainer, trainer.current_epoch + 2)

    def tell(self, trainer: Trainer, step: int) -> None:
        """Set what a signal does and says while ``step`` is not done yet."""
        under_way = (
            f"finishing step {step}, then saving" if step <= (trainer.max_epochs or 0) else "writing the results"
        )
        saved = by_age(Path(trainer.default_root_dir, "checkpoints"))
        kept = f"the last checkpoint is {saved[-1]}" if saved else "no step has been saved"
        waits(f"{under_way}; again to stop now", f"stopped now; {kept}")
