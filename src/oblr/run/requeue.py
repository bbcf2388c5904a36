"""A job that SLURM has asked to end goes back into its queue."""

import logging
import os
import signal
import subprocess

log = logging.getLogger(__name__)
#: Seconds that SLURM's controller has for an answer: what asked the run to end will kill it soon.
PATIENCE = 60


def requeue(received: signal.Signals | None) -> None:
    """Under SLURM, rank 0 puts a job that this signal has asked to end back into its queue; it will be killed."""
    job = os.environ.get("SLURM_JOB_ID")
    asked = received in (signal.SIGTERM, signal.SIGUSR1)
    if job is None or not asked or os.environ.get("SLURM_PROCID", "0") != "0":
        return
    if {"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"} <= os.environ.keys():
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        command = ["scontrol", "requeue", "Incomplete", job]  # and not one that scancel has just ended
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:  # in a container there may be none
        said = getattr(error, "stderr", None) or str(error)
        log.warning(
            "job %s is not queued again: %s (submit it anew, with ckpt_path=CHECKPOINT)",
            job,
            " ".join(said.split()),
        )
