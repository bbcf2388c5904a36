"""Who moves what between ranks, and a machine whose ranks can move nothing that lies on the CPU, as NCCL's cannot."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oblr.rollout.vllm import VLLMEngine
from oblr.run.ranks import Ranks

ONE_SIDED = "one_sided"
dist.Backend.register_backend(
    ONE_SIDED,
    lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout),
    devices=["cuda"],
)
OWN = ("oblr", "callbacks")
#: Folders of the packages that a stack is searched for, from its inner end on.
ROUTES = {
    name: str(Path(find_spec(name.replace("/", ".")).origin).parent) + "/"  # type: ignore[union-attr, arg-type]
    for name in ("torch/distributed/fsdp", "torch/distributed/checkpoint", "torchmetrics", "lightning", *OWN)
}


class Recorder(TorchDispatchMode):
    """Lists all collectives as (route, operation, devices and shapes of the tensors, each once)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, list[str]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # its local tensors come by
        name = str(func)
        if "c10d" in name and "wait" not in name and "wrap" not in name:
            tensors = (leaf for leaf in tree_leaves(args) if torch.is_tensor(leaf))
            places = dict.fromkeys(f"{tensor.device.type}{list(tensor.shape)}" for tensor in tensors)
            self.seen.append((route(), name.split(".")[1].strip("_"), list(places)))
        return func(*args, **(kwargs or {}))


def route() -> str:
    """The innermost of :data:`ROUTES`; of the project's own, file and function."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        for place, folder in ROUTES.items():
            if path.startswith(folder):
                return f"{Path(path).name}:{frame.f_code.co_name}" if place in OWN else place
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"


class Record(Callback):
    """Writes what a rank's run has seen to ``<path>-<rank>.json``."""

    def __init__(self, path: str):
        self.path = path

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.recorder = Recorder()
        self.recorder.__enter__()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.recorder.__exit__(None, None, None)
        Path(f"{self.path}-{trainer.global_rank}.json").write_text(json.dumps(self.recorder.seen))
        trainer.strategy.barrier()  # the first rank's process may end before the others have written


def recorded(path: Path, ranks: int = 2, copies: int = 1) -> list[list[Any]]:
    """What :class:`Record` has written, of all ranks: the same on each.

    Of sharded copies, ranks with another shard exchange another number of rows with the other copies.
    """
    first, *others = seen = [json.loads(Path(f"{path}-{rank}.json").read_text()) for rank in range(ranks)]
    for rank, other in enumerate(others, 1):
        assert other == (first if copies == 1 else seen[rank % (ranks // copies)])
        assert [step[:2] for step in other] == [step[:2] for step in first]
    return first


class OneSidedVLLM(VLLMEngine):
    """Leaves a default group behind that has no CPU side, as vLLM does on a GPU."""

    def start(self) -> None:
        from vllm.platforms import current_platform

        current_platform.dist_backend = ONE_SIDED
        super().start()


class BesideAnother(Ranks):
    """This rank and one that says what it is told to; `test_ranks.py` has real ones."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def objects(self, own):
        return [own, self.other]

    def reduce(self, tensor, operation="sum"):
        return {"max": torch.maximum}[operation](tensor, torch.tensor(self.other, dtype=tensor.dtype))


@contextmanager
def two_ranks_on_paper() -> Iterator[tuple[DeviceMesh, Recorder]]:
    """A world of two ranks with a GPU each, of which this is the first; tensors have no numbers."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = DeviceMesh("cuda", [0, 1])
        with FakeTensorMode(allow_non_fake_inputs=True), Recorder() as recorder:
            yield mesh, recorder
    finally:
        dist.destroy_process_group()
