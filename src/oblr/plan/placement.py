"""Host and device on a machine that has no device: which tensors would be where, and when the host would wait.

To a program inside, tensors on the device have the device ``cpu:0`` and the others ``cpu``; what it makes there or
moves there is followed. So a dry run counts the very copies and waits that a GPU would see.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import _engine_run_backward
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from oblr import kernels
from oblr.plan.work import Op, Sync, Work, tensors, touched

DEVICE, HOST = torch.device("cpu", 0), torch.device("cpu")
_SOURCE = Path(__file__).parents[1]
#: Its buffers are on the device, which its mesh calls ``cpu``.
_SHARDING = "torch.distributed.fsdp."
_FROM_DATA = {torch.tensor, torch.as_tensor}
#: On CUDA one kernel, whatever the CPU makes it of.
_WHOLE = {torch.nn.functional.rms_norm, torch.rms_norm, torch.ops.aten._fused_rms_norm}


class FakeDevice:
    """A device that is not there: which tensors are on it, what it does, and when the host waits for it.

    Fake tensors are on it; of real ones those that the program moves or makes there.

    Attributes:
        work: what operations on it did.
        phase: of the work.
        placed: by storage, whether it is here, where a tensor's being fake does not tell.
        made_on: whether what is made of no tensors is here; None: nobody says.
        counting: whether operations count one by one.
        busy: operations under way.
    """

    def __init__(self) -> None:
        self.work, self.phase = Work(), "rest"
        self.placed: dict[int, bool] = {}
        self.made_on: bool | None = None
        self.counting, self.busy = True, 0

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    @contextmanager
    def making_on(self, device: bool | None) -> Iterator[None]:
        """What is made of no tensors inside is on the device, or on the host."""
        before, self.made_on = self.made_on, device
        try:
            yield
        finally:
            self.made_on = before

    @contextmanager
    def moving_to(self, device: bool) -> Iterator[None]:
        """What is made inside is there, whatever it is made of; it takes no kernel."""
        self.counting = False
        try:
            with self.making_on(device):
                yield
        finally:
            self.counting = True

    @contextmanager
    def whole(self, func: Any, args: Any, kwargs: Any) -> Iterator[list[Any]]:
        """All that is done inside is one operation; yields a list to put its result into."""
        results: list[Any] = []
        counting, self.counting = self.counting, False
        try:
            yield results
        finally:
            self.counting = counting
        inputs, outputs = list(tensors((args, *kwargs.values()))), list(tensors(results))
        if counting and any(map(self.on_device, inputs)):
            size = sum(map(touched, inputs)) + sum(map(touched, outputs))
            dtype = str(outputs[0].dtype).removeprefix("torch.")
            self.work.ops[Op(self.phase, func.__name__, dtype, 0, size, 1)] += 1

    def on_device(self, tensor: Tensor) -> bool:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return self.placed.get(local.untyped_storage()._cdata, isinstance(local, FakeTensor))

    def wait(self, what: str, times: int = 1) -> None:
        """The host waits for the device."""
        self.work.syncs[Sync(self.phase, source_line(), what)] += times


class Placement(TorchFunctionMode):
    """Follows tensors between host and device, by what the program asks of them."""

    def __init__(self, fake: FakeDevice):
        super().__init__()
        self.fake = fake
        self.ask: dict[Any, Callable[..., Any]] = {
            Tensor.device.__get__: lambda x: self.device(x, Tensor.device),  # type: ignore[attr-defined]
            Tensor.to: self.to,
            Tensor.cpu: lambda x: self.to(x, HOST),
            Tensor.cuda: lambda x, *_, **options: self.to(x, DEVICE, **options),
            Tensor.pin_memory: lambda x: x,
            Tensor.tolist: self.tolist,
            Tensor.data_ptr: self.data_ptr,
            Tensor.backward: self.backward,
            **{func: self.from_data(func) for func in _FROM_DATA},
            **{func: self.whole(func) for func in _WHOLE},
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.fake.busy:  # with an operation, whose insides are the CPU's
            return func(*args, **kwargs)
        if func in self.ask:
            return self.ask[func](*args, **kwargs)
        if kwargs.get("device") is None:
            return func(*args, **kwargs)
        if not _asked_by_torch():
            with self.fake.making_on(torch.device(kwargs["device"]) == DEVICE):
                return func(*args, **kwargs | {"device": HOST})
        with self.fake.making_on(True) if _asks().startswith(_SHARDING) else nullcontext():
            return func(*args, **kwargs)

    @contextmanager
    def of_fake_tensors(self) -> Iterator[None]:
        """Inside, they too say where they are: their own property does not ask the mode."""
        own = FakeTensor.device
        FakeTensor.device = property(lambda x: self.device(x, own))  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            FakeTensor.device = own  # type: ignore[method-assign]

    def device(self, x: Tensor, getter: Any) -> torch.device:
        real = getter.__get__(x)
        if real != HOST or self.fake.busy or _asked_by_torch():
            return real
        return DEVICE if self.fake.on_device(x) else HOST

    def to(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target = next((kwargs[key] for key in ("device", "other") if kwargs.get(key) is not None), None)
        if args and not isinstance(args[0], torch.dtype):
            target, args = args[0], args[1:]
        kwargs.pop("device", None)
        if isinstance(target, Tensor):
            x = x.to(target.dtype)
            kwargs.pop("other", None)
        elif target is not None and torch.device(target).type != "cpu":
            return x.to(target, *args, **kwargs)
        cast = x.to(*args, **kwargs) if args or kwargs else x
        if target is None or isinstance(x, DTensor):
            return cast
        there = self.fake.on_device(target) if isinstance(target, Tensor) else torch.device(target) == DEVICE
        if there == self.fake.on_device(cast):
            return cast
        if not kwargs.get("non_blocking"):
            self.fake.wait("copy to the device" if there else "copy to the host")
        with self.fake.moving_to(there):
            return cast.clone()

    def tolist(self, x: Tensor) -> Any:
        if self.fake.on_device(x):
            self.fake.wait("tolist")
            x = self.to(x, HOST, non_blocking=True)
        return x.tolist()

    def data_ptr(self, x: Tensor) -> int:
        """Fake tensors have none, and would all be at the same place."""
        if not isinstance(x, FakeTensor):
            return x.data_ptr()
        return x.untyped_storage()._cdata + int(x.storage_offset()) * x.element_size()

    def from_data(self, func: Any) -> Callable[..., Tensor]:
        def make(*args: Any, **kwargs: Any) -> Tensor:
            device = kwargs.pop("device", None)
            made = func(*args, **kwargs)
            return made if device is None else self.to(made, device)

        return make

    def backward(self, x: Tensor, gradient: Tensor | None = None, retain_graph: Any = None, *_: Any, **__: Any) -> None:
        gradient = torch.ones_like(x) if gradient is None else gradient
        with self, self.fake.doing("backward"):  # backward() itself would run without the mode
            _engine_run_backward((x,), (gradient,), bool(retain_graph), False, (), True, accumulate_grad=True)

    def whole(self, func: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.fake.whole(func, args, kwargs) as results:
                results.append(func(*args, **kwargs))
            return results[0]

        return run


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Inside, all goes the ways that it would go on a GPU, whose tensors the host's stand for."""
    answers: dict[str, Callable[..., Any]] = {
        "on_gpu": lambda x: True,
        "on_tensor_cores": lambda x: x.dtype != torch.float32 and type(x) is not Tensor,  # no CPU multiplies so
        "upload": lambda x, device: x,
    }
    own = {name: getattr(kernels, name) for name in answers}
    vars(kernels).update(answers)
    try:
        yield
    finally:
        vars(kernels).update(own)


def _asks() -> str:
    """The module that called."""
    frame = sys._getframe(2)
    while frame.f_globals["__name__"] == __name__:
        frame = frame.f_back  # type: ignore[assignment]
    return str(frame.f_globals["__name__"])


def _asked_by_torch() -> bool:
    """Libraries compare devices, and see them partly without the mode; to them nothing is on the device."""
    return _asks().partition(".")[0] == "torch"


def source_line() -> str:
    """The innermost line of our source, plans excepted, that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_SOURCE) and path.parent != Path(__file__).parent:
            return f"{path.relative_to(_SOURCE)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
