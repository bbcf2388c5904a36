"""Lightning's strategies, with one kind of checkpoint: whatever ranks wrote it, any other can go on from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.strategies.launchers import subprocess_script
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from oblr.kinds import Few
from oblr.run import checkpoint as checkpoints
from oblr.run import ranks
from oblr.run.manifest import Order
from oblr.run.meeting import meet

# processes.watched says which rank has failed, and why. Lightning's own watch would kill this one without a word.
subprocess_script._launch_process_observer = lambda child_processes: None


class AnyRanks(Strategy):
    """Checkpoints are those of :mod:`oblr.run.checkpoint`; the optimizers' hyperparameters are the configuration's."""

    restore_checkpoint_after_setup = True  # type: ignore[assignment]
    lightning_restore_optimizer = False  # type: ignore[assignment]

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return {}  # save_checkpoint reads the module itself

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        pass  # load_checkpoint has done it

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        pass

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        assert self.lightning_module is not None
        order = storage_options if isinstance(storage_options, Order) else None
        checkpoints.save(Path(filepath), self.lightning_module, self.optimizers[0], checkpoint, order)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        assert self.lightning_module is not None
        optimizer = self.optimizers[0] if self.optimizers else None
        return checkpoints.load(Path(checkpoint_path), self.lightning_module, optimizer)


class SingleDevice(AnyRanks, SingleDeviceStrategy):
    """One process on the first of the trainer's devices."""

    def __init__(self) -> None:
        super().__init__()
        self.parallel_devices: list[torch.device] | None = None  # the trainer tells

    @property
    def root_device(self) -> torch.device:
        assert self.parallel_devices is not None
        return self.parallel_devices[0]

    def setup_environment(self) -> None:
        super().setup_environment()
        ranks.stay_alone()


def backend() -> str:
    """Of the group of a run's ranks: NCCL moves what lies on GPUs, gloo objects and what lies in host memory."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def make_group(strategy: DDPStrategy | ModelParallelStrategy) -> None:
    """That of all ranks; Lightning finds it made."""
    told = strategy.cluster_environment
    assert told is not None
    place = (told.main_address, told.main_port, told.global_rank(), told.world_size())
    meet(*place, strategy.num_nodes, backend(), strategy.root_device)


class DDP(AnyRanks, DDPStrategy):
    """A whole policy a device."""

    def __init__(self) -> None:
        super().__init__(process_group_backend=backend())

    def setup_distributed(self) -> None:
        self.set_world_ranks()
        make_group(self)
        super().setup_distributed()

    def setup_environment(self) -> None:
        super().setup_environment()
        ranks.join(self.root_device)


class FSDP(AnyRanks, ModelParallelStrategy):
    """FSDP2 over all devices, or HSDP. The policy shards itself, and lies where it belongs.

    Args:
        replicas: copies of the policy, each sharded over as many consecutive ranks; of two nodes two stay within a node
            each. The module's ``device_mesh`` is then of copies × shards, else of shards alone.
    """

    def __init__(self, replicas: Few = 1) -> None:
        super().__init__(process_group_backend=backend())
        self.replicas = replicas

    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)
        self.set_world_ranks()
        make_group(self)
        super().setup_environment()
        ranks.join(self.root_device)
        assert self.lightning_module is not None
        self.lightning_module._device_mesh = self.mesh()

    def mesh(self) -> DeviceMesh:
        """Of all ranks: [ranks], or [copies, ranks of each]."""
        if self.replicas == 1:
            return self.device_mesh["data_parallel"]
        shape = self.replicas, self.world_size // self.replicas
        return init_device_mesh(self.root_device.type, shape, mesh_dim_names=("replicas", "shards"))

    def model_to_device(self) -> None:
        assert self.lightning_module is not None
        self.lightning_module._device = self.root_device  # of micro-batches; shards may lie in host memory
