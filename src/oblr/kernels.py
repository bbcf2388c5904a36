"""Which kernels an operation may use."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_AS_ON_GPU = ContextVar("as_on_gpu", default=False)


def on_gpu(x: Tensor) -> bool:
    """Whether ``x`` is handled as on a GPU: products on tensor cores, attention without a mask."""
    return x.is_cuda or _AS_ON_GPU.get()


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """A dry run, whose tensors have no numbers, takes the ways that a GPU would."""
    token = _AS_ON_GPU.set(True)
    try:
        yield
    finally:
        _AS_ON_GPU.reset(token)
