"""Run a program for what it would allocate and send: shapes are computed, numbers are not."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from oblr.plan.placement import FakeDevice, Placement
from oblr.plan.work import Work, name_of, operations, tensors, waits

Bytes = Counter[str]
#: a parameter's name and how often it has been come to
Visit = tuple[str, int]
#: Floating-point tensors of more elements are never made, on the device none.
SMALL = 2**14
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._unsafe_index.Tensor}
#: collective → its name, and the bytes that a rank receives, told by the arguments
_COLLECTIVES: dict[Any, tuple[str, Callable[..., int]]] = {
    torch.ops.c10d._allgather_base_.default: ("all-gather", lambda whole, own, *_: whole.nbytes - own.nbytes),
    torch.ops.c10d._reduce_scatter_base_.default: ("reduce-scatter", lambda own, whole, *_: whole.nbytes - own.nbytes),
    torch.ops.c10d.allreduce_.default: (
        "all-reduce",
        lambda each, group, *_: _in_a_ring(sum(x.nbytes for x in each), torch.distributed.ProcessGroup.unbox(group)),
    ),
    torch.ops._c10d_functional.all_gather_into_tensor.default: (
        "all-gather",
        lambda own, ranks, *_: own.nbytes * (ranks - 1),
    ),
    torch.ops._c10d_functional.reduce_scatter_tensor.default: (
        "reduce-scatter",
        lambda whole, _, ranks, *__: whole.nbytes * (ranks - 1) // ranks,
    ),
    torch.ops._c10d_functional.all_reduce.default: (
        "all-reduce",
        lambda x, _, name: _in_a_ring(x.nbytes, _resolve_process_group(name)),
    ),
}


def _in_a_ring(size: int, group: Any) -> int:
    """Bytes that a rank receives to have the sum of all ranks' ``size``."""
    return 2 * size * (group.size() - 1) // group.size()


class DryRun(TorchDispatchMode):
    r"""Counts the bytes of all tensors that operations make, as long as they live, and what the operations do.

    Floating-point tensors are fake where they are large or on the device, whatever they are made of. Indices stay real,
    because shapes depend on them: which token belongs to which sequence. What the program is given is made under
    :attr:`fake`, and :meth:`adopt`\ ed.

    Attributes:
        device: what operations on it did, and which tensors are there.
        live: bytes by kind.
        peaks: the bytes by kind when most were live, between coming to one parameter and coming to the next.
        moved: bytes that each rank of the world receives, by collective.
        shapes: kinds of tensors that their shape tells.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.live: Bytes = Counter()
        self.shapes: dict[tuple[int, ...], str] = {}
        self.kind: str | None = None
        self.storages: dict[int, tuple[str, int]] = {}
        self.names: dict[int, str] = {}
        self.device = FakeDevice()
        self.placement = Placement(self.device)
        self.filling: set[Any] = set()  # operations that fill the tensors they are given to write into
        self.restart()

    def restart(self) -> None:
        """Forget all peaks, what was moved and what was done."""
        self.device.work = Work()
        self.peaks: dict[Visit, Bytes] = {}
        self.moved: Bytes = Counter()
        self.visits: Counter[str] = Counter()
        self.come_to("")

    def come_to(self, name: str) -> None:
        self.name = name
        self.visits[name] += 1
        self.total = self.live.total()
        self.peaks[name, self.visits[name]], self.highest = self.live.copy(), self.total

    @contextmanager
    def making(self, kind: str) -> Iterator[None]:
        """All that is made inside is of this kind; elsewhere it is in transit, activations, or what its shape tells."""
        self.kind = kind
        try:
            yield
        finally:
            self.kind = None

    def adopt(self, kind: str, named: Iterable[tuple[str, Tensor]]) -> None:
        """Count tensors that were made outside, and know them by their names."""
        with self.making(kind):
            for name, tensor in named:
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                self.see(local)
                self.names[local.untyped_storage()._cdata] = name

    def __enter__(self) -> "DryRun":
        # FSDP2 gives memory back by resizing storages, which is no operation.
        self.resize, run = torch.UntypedStorage.resize_, self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            run.resize(storage, size)
            run.measure(storage)
            return storage

        torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment, method-assign]
        super().__enter__()
        self.inside = ExitStack()
        self.inside.enter_context(self.placement.of_fake_tensors())
        self.inside.enter_context(self.placement)
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self.resize  # type: ignore[method-assign]
        self.inside.close()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # half of all calls
            return func(*args)
        if DTensor in types:
            return NotImplemented  # its local tensors come by
        self.device.busy += 1
        try:
            return self.operate(func, args, kwargs or {})
        finally:
            self.device.busy -= 1

    def operate(self, func: Any, args: Any, kwargs: Any) -> Any:
        device, inputs = self.device, list(tensors((args, *kwargs.values())))
        if any(getattr(tensor, "fake_mode", self.fake) is not self.fake for tensor in inputs):
            return func(*args, **kwargs)  # DTensor tries shapes out
        for tensor in inputs:
            name = self.names.get(tensor.untyped_storage()._cdata)
            if name is not None and name != self.name:
                self.come_to(name)
        fake = any(isinstance(tensor, FakeTensor) for tensor in inputs)
        on_device = any(map(device.on_device, inputs)) if inputs else bool(device.made_on)
        if on_device and device.counting and (times := waits(func, args, kwargs, device.on_device)):
            device.wait(name_of(func), times)
        if fake and func in _INDEXING:
            args = (args[0], [part for index in args[1] for part in _positions(index)], *args[2:])
        if fake and func is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point():
            return 1.0  # what was waited for; it means nothing
        if func in _COLLECTIVES:
            self.move(func, args)
        there = on_device if device.counting or device.made_on is None else device.made_on
        if fake:
            out = self.pretend(func, args, kwargs)
        else:
            out = func(*args, **kwargs) if inputs else self.made(func, args, kwargs, there)
        if fake and func._schema.is_mutable and isinstance(args[0], Tensor) and not isinstance(args[0], FakeTensor):
            out = args[0]  # small and real, and stays so: its numbers no longer mean anything
        elif type(out) is Tensor and not out.is_meta and _without_numbers(out, there):
            out = self.fake.from_tensor(out)
        for tensor in tensors(out):
            if not tensor.is_meta and getattr(tensor, "fake_mode", self.fake) is self.fake:
                self.see(tensor, there)
        if on_device and device.counting:
            device.work.ops.update(operations(func, args, kwargs, out, device.phase))
        return out

    def pretend(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation on fake tensors, as ``func(*args)`` would give it by a longer way.

        What writes into a tensor that already has the result's shape is asked once of these shapes: torch's own cache
        leaves that out, and the loops over segments do it most of all.
        """
        given = kwargs.get("out")
        form = (func, _form(args), _form(kwargs)) if isinstance(given, Tensor) else None
        if form in self.filling:
            return given
        out = self.fake.__torch_dispatch__(func, (), args, kwargs)
        if form is not None and out is given and _form(kwargs) == form[2]:
            self.filling.add(form)
        return out

    def made(self, func: Any, args: Any, kwargs: Any, there: bool | None) -> Any:
        """What is made of no tensors; what is to have no numbers never takes memory."""
        if active_fake_mode() is None:  # else DTensor tries shapes out
            with self.fake:
                out = func(*args, **kwargs)
            if isinstance(out, Tensor) and _without_numbers(out, there):
                return out
        return func(*args, **kwargs)

    def move(self, func: Any, args: Any) -> None:
        name, received = _COLLECTIVES[func]
        self.moved[name] += received(*args)

    def see(self, tensor: Tensor, on_device: bool = True) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.storages:
            if on_device != isinstance(tensor, FakeTensor):
                self.device.placed[storage._cdata] = on_device
            self.storages[storage._cdata] = (self.kind or self.kind_of(tensor), 0)
            weakref.finalize(storage, self.free, storage._cdata)
            self.measure(storage)

    def kind_of(self, tensor: Tensor) -> str:
        if tensor.ndim == 1 and tensor.numel() > 2**20:  # what collectives read and write
            return "in transit"
        return self.shapes.get(tuple(tensor.shape), "activations")

    def measure(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self.storages:
            kind, before = self.storages[storage._cdata]
            self.storages[storage._cdata] = (kind, storage.nbytes())
            self.add(kind, storage.nbytes() - before)

    def free(self, key: int) -> None:
        kind, size = self.storages.pop(key)
        self.names.pop(key, None)
        self.device.placed.pop(key, None)
        self.add(kind, -size)

    def add(self, kind: str, size: int) -> None:
        self.live[kind] += size
        self.total += size
        if self.total > self.highest:
            self.peaks[self.name, self.visits[self.name]], self.highest = self.live.copy(), self.total


def _form(value: Any) -> Any:
    """Arguments of an operation without their numbers: what decides the shape of its result."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_form, value))
    return tuple((key, _form(one)) for key, one in value.items()) if isinstance(value, dict) else value


def _without_numbers(tensor: Tensor, there: bool | None) -> bool:
    return tensor.is_floating_point() and (bool(there) or tensor.numel() > SMALL)


@contextmanager
def fake_world(shards: int, replicas: int = 1) -> Iterator[DeviceMesh]:
    """A mesh as a run's strategy makes it, of which this process is the first and only rank; collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=replicas * shards)
    try:
        shape, names = ((replicas, shards), ("replicas", "shards")) if replicas > 1 else ((shards,), ("shards",))
        yield init_device_mesh("cpu", shape, mesh_dim_names=names)
    finally:
        torch.distributed.destroy_process_group()


def shapes_in_transit(model: nn.Module) -> dict[tuple[int, ...], str]:
    """Whole matrices that come and go: gathered weights, and gradients before they are sharded or added."""
    return {tuple(p.shape): "in transit" for p in model.parameters() if p.ndim > 1}


def _positions(index: Any) -> list[Any]:
    """A real mask as indices, on which the shape of the result depends."""
    if isinstance(index, Tensor) and index.dtype == torch.bool and not isinstance(index, FakeTensor):
        return list(index.nonzero().unbind(1))
    return [index]
