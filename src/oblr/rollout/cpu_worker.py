"""A worker of vLLM's CPU build whose ranks find each other and nobody else."""

import os

from vllm.v1.worker.cpu_worker import CPUWorker


class RunsOwnWorker(CPUWorker):
    """Tensor-parallel ranks share memory under a name that vLLM makes of how they were brought together.

    Of ranks that somebody else has brought together it makes the same one always: a second run on the machine would
    meet the first, or what a killed one has left. The port of the run's own ranks tells them apart.
    """

    def init_device(self) -> None:
        if self.distributed_init_method == "env://":
            self.distributed_init_method += f":{os.environ['MASTER_PORT']}"
        super().init_device()
