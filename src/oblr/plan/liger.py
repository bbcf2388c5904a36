"""What stands for Liger's kernels in a dry run, which has no Triton: operations that move about as many bytes."""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def stand_in_for_liger(lm: PreTrainedModel) -> Iterator[None]:
    """Inside, SwiGLU is one product of gate and up, rotary embeddings are one product of each of query and key.

    A backward kernel of SwiGLU writes two gradients, where the product has a kernel for each.
    """
    for module in lm.modules():
        if all(isinstance(getattr(module, name, None), nn.Linear) for name in ("gate_proj", "up_proj", "down_proj")):
            module.forward = functools.partial(_swiglu, module)  # type: ignore[method-assign]
    modeling: Any = sys.modules[type(lm).__module__]  # of all models of this kind in this process
    rotary = getattr(modeling, "apply_rotary_pos_emb", None)
    try:
        if rotary is not None:
            modeling.apply_rotary_pos_emb = _rotated
        yield
    finally:
        if rotary is not None:
            modeling.apply_rotary_pos_emb = rotary


def _swiglu(module: Any, x: Tensor) -> Tensor:
    return module.down_proj(module.gate_proj(x) * module.up_proj(x))


def _rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return torch.mul(q, 1.0), torch.mul(k, 1.0)
