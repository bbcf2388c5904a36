"""Which kernels an operation may use, and how what the host knows gets to the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

#: In a dry run of a GPU: what makes a tensor of the host one of the device.
_DRY_RUN: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("dry_run", default=None)


def on_gpu(x: Tensor) -> bool:
    """Whether ``x`` is handled as on a GPU: products on tensor cores, attention without a mask."""
    return x.is_cuda or _DRY_RUN.get() is not None


def upload(x: Tensor, device: torch.device) -> Tensor:
    """``x``, which the host has made, on ``device``; neither waits for the other.

    A GPU copies by itself from pinned memory alone, which torch's allocator gives to nobody else until it has.
    """
    dry_run = _DRY_RUN.get()
    if dry_run is not None:
        return dry_run(x)
    there = x.pin_memory() if device.type == "cuda" and x.device.type == "cpu" else x
    return there.to(device, non_blocking=True)


@contextmanager
def as_on_gpu(uploaded: Callable[[Tensor], Tensor] = lambda x: x) -> Iterator[None]:
    """A dry run, whose tensors have no numbers, takes the ways that a GPU would.

    Args:
        uploaded: what stands for a tensor of the host once it is on the device.
    """
    token = _DRY_RUN.set(uploaded)
    try:
        yield
    finally:
        _DRY_RUN.reset(token)
