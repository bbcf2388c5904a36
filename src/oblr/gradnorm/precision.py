"""What autocast means for the captured layers: low-precision products of float32 master weights."""

from typing import Any

import torch
from torch import Tensor


def autocast(x: Any) -> Any:
    """``x`` (or None) in the precision that autocast, where it is on, has linear layers compute in."""
    if x is None or not torch.amp.is_autocast_available(x.device.type) or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def no_autocast(x: Tensor) -> torch.autocast:
    """A context for backward passes and contractions: everything in the precision of its inputs."""
    return torch.autocast(x.device.type, enabled=False)
