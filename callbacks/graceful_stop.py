"""A signal ends a run after the step under way, with a checkpoint; under SLURM the job goes back into the queue."""

import logging
import os
import signal
import subprocess
from types import FrameType

from lightning import Callback, LightningModule, Trainer

from oblr.run.ranks import of_run

log = logging.getLogger(__name__)
#: What asks a run to end. SLURM sends the last two before it takes the machine away.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
#: Seconds that SLURM's controller has for an answer: what asked the run to end will kill it soon.
PATIENCE = 60


class GracefulStop(Callback):
    """On SIGINT, SIGTERM or SIGUSR1 to any rank: finish the step, save, stop all ranks. A second SIGINT stops at once.

    Attributes:
        received: the signal that ended the run, if one did.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.training = False

    def listen(self) -> None:
        """Take the signals; one that comes before the first step ends the process, as nothing is lost."""

        def handle(number: int, frame: FrameType | None) -> None:
            again = number == signal.SIGINT and self.received is not None
            self.received = signal.Signals(number)
            if again or not self.training:
                self.requeue()
                raise SystemExit(128 + number)

        for number in SIGNALS:
            signal.signal(number, handle)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.listen()  # again: Lightning has put handlers of its own in between
        self.training = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        number = of_run().greatest(self.received or 0)
        if number:
            self.received, trainer.should_stop = signal.Signals(int(number)), True

    def requeue(self) -> None:
        """Under SLURM, rank 0 puts a job that SLURM has asked to end back into its queue; it will be killed."""
        job = os.environ.get("SLURM_JOB_ID")
        asked = self.received in (signal.SIGTERM, signal.SIGUSR1)
        if job is None or not asked or os.environ.get("SLURM_PROCID", "0") != "0":
            return
        if {"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"} <= os.environ.keys():
            job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        try:
            command = ["scontrol", "requeue", job]
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
        except (OSError, subprocess.SubprocessError) as error:  # in a container there may be none
            said = getattr(error, "stderr", None) or str(error)
            log.warning(
                "job %s is not queued again: %s (submit it anew, with ckpt_path=CHECKPOINT)",
                job,
                " ".join(said.split()),
            )
