"""What autocast means for the captured layers: low-precision products of float32 master weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def autocast(x: Any) -> Any:
    """``x`` (or None) in the precision that autocast, where it is on, has linear layers compute in."""
    if x is None or not torch.amp.is_autocast_available(x.device.type) or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


#: What weights were rounded to, by storage and shape; None where nobody keeps it. It is every thread's: on a GPU what
#: is recomputed in a backward pass is recomputed in autograd's own, while the one that has called it waits.
_rounded: dict[tuple[int, torch.Size], Tensor] | None = None


def rounded(weight: Tensor) -> Tensor:
    """:func:`autocast` of a weight; once for all forward passes inside :func:`rounded_once`."""
    known, key = _rounded, (weight.untyped_storage()._cdata, weight.shape)
    if known is None or not torch.is_autocast_enabled(weight.device.type):
        return autocast(weight)
    if key not in known:
        known[key] = autocast(weight)
    return known[key]


@contextmanager
def rounded_once() -> Iterator[None]:
    """No weight changes inside: what autocast makes of each is kept, as autocast itself does for layers of its own."""
    global _rounded
    before, _rounded = _rounded, {}
    try:
        yield
    finally:
        _rounded = before


def no_autocast(x: Tensor) -> torch.autocast:
    """A context for backward passes and contractions: everything in the precision of its inputs."""
    return torch.autocast(x.device.type, enabled=False)
