"""Which kernels an operation may use, and how what the host knows gets to the device.

They are asked of this module, as in ``kernels.on_gpu(x)``, and not imported by name: then something else can answer.
"""

import torch
from torch import Tensor


def on_gpu(x: Tensor) -> bool:
    """Whether ``x`` is handled as on a GPU: products on tensor cores, attention without a mask."""
    return x.is_cuda


def on_tensor_cores(x: Tensor) -> bool:
    """Whether products of ``x`` are summed in float32 there, of factors in a lower precision."""
    return x.is_cuda and x.dtype != torch.float32


def upload(x: Tensor, device: torch.device) -> Tensor:
    """``x``, which the host has made, on ``device``; neither waits for the other.

    A GPU copies by itself from pinned memory alone, which torch's allocator gives to nobody else until it has.
    """
    there = x.pin_memory() if device.type == "cuda" and x.device.type == "cpu" else x
    return there.to(device, non_blocking=True)
