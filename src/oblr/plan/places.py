"""Host and device on a machine that has no device: which tensors would be where, and when the host would wait.

To a program inside, tensors on the device have the device ``cpu:0`` and the others ``cpu``; what it makes there or
moves there is followed. So a dry run counts the very copies and waits that a GPU would see.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import _engine_run_backward
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from oblr.plan.dry_run import DryRun

DEVICE, HOST = torch.device("cpu", 0), torch.device("cpu")
_SOURCE = Path(__file__).parents[1]
#: Its buffers are on the device, which its mesh calls ``cpu``.
_SHARDING = "torch.distributed.fsdp."
_FROM_DATA = {torch.tensor, torch.as_tensor}
#: On CUDA one kernel, whatever the CPU makes it of.
_WHOLE = {torch.nn.functional.rms_norm, torch.rms_norm, torch.ops.aten._fused_rms_norm}


class Places(TorchFunctionMode):
    """Follows tensors between host and device, by what the program asks of them."""

    def __init__(self, run: "DryRun"):
        super().__init__()
        self.run = run
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
        if self.run.busy:  # with an operation, whose insides are the CPU's
            return func(*args, **kwargs)
        if func in self.ask:
            return self.ask[func](*args, **kwargs)
        if kwargs.get("device") is None:
            return func(*args, **kwargs)
        if not _asked_by_torch():
            with self.run.making_on(torch.device(kwargs["device"]) == DEVICE):
                return func(*args, **kwargs | {"device": HOST})
        with self.run.making_on(True) if _asks().startswith(_SHARDING) else nullcontext():
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
        if real != HOST or self.run.busy or _asked_by_torch():
            return real
        return DEVICE if self.run.on_device(x) else HOST

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
        there = self.run.on_device(target) if isinstance(target, Tensor) else torch.device(target) == DEVICE
        if there == self.run.on_device(cast):
            return cast
        if not kwargs.get("non_blocking"):
            self.run.wait("copy to the device" if there else "copy to the host")
        with self.run.moving_to(there):
            return cast.clone()

    def tolist(self, x: Tensor) -> Any:
        if self.run.on_device(x):
            self.run.wait("tolist")
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
        with self, self.run.doing("backward"):  # backward() itself would run without the mode
            _engine_run_backward((x,), (gradient,), bool(retain_graph), False, (), True, accumulate_grad=True)

    def whole(self, func: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.run.whole(func, args, kwargs) as results:
                results.append(func(*args, **kwargs))
            return results[0]

        return run


def _asks() -> str:
    """The module that called."""
    frame = sys._getframe(2)
    while frame.f_globals["__name__"] == __name__:
        frame = frame.f_back  # type: ignore[assignment]
    return str(frame.f_globals["__name__"])


def _asked_by_torch() -> bool:
    """Libraries compare devices, and see them partly without the mode; to them nothing is on the device."""
    return _asks().partition(".")[0] == "torch"


def place() -> str:
    """The innermost line of our source, plans excepted, that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_SOURCE) and path.parent != Path(__file__).parent:
            return f"{path.relative_to(_SOURCE)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
