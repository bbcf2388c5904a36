"""On a GPU: one kernel where transformers' layers run a chain of element-wise ones, each bound by memory.

RMSNorms take torch's own kernel; rotary embeddings and SwiGLU those of Liger (https://github.com/linkedin/Liger-Kernel),
which see activations alone. So nothing is hidden that :mod:`oblr.gradnorm.capture` has to see.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from oblr.gradnorm.kinds import rms_norm_epsilon
from oblr.gradnorm.precision import autocast

log = logging.getLogger(__name__)


def fuse(lm: PreTrainedModel) -> None:
    """Make ``lm``, which will lie on a GPU, use such kernels wherever they are known for its layers.

    Under autocast its residual stream is in autocast's precision, as FSDP2's and the engine's are, not in float32.
    """
    fuse_torch(lm)
    if find_spec("liger_kernel") is None:
        log.warning("liger-kernel is not installed: rotary embeddings and SwiGLU take several times as long")
        return
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as KNOWN

    if (apply := KNOWN.get(lm.config.model_type)) is not None:
        wanted = dict.fromkeys(("rope", "swiglu", "geglu"), True)
        wanted |= dict.fromkeys(("rms_norm", "layer_norm", "cross_entropy", "fused_linear_cross_entropy"), False)
        takes = inspect.signature(apply).parameters
        apply(**{name: value for name, value in wanted.items() if name in takes}, model=lm)


def fuse_torch(lm: PreTrainedModel) -> None:
    """The part of :func:`fuse` that torch does."""
    for module in lm.modules():
        eps = rms_norm_epsilon(module)
        if eps is not None:
            module.forward = functools.partial(_rms_norm, module, eps)  # type: ignore[method-assign]
    embedding = lm.get_input_embeddings()
    embedding.forward = functools.partial(_embedding, embedding.forward)  # type: ignore[method-assign]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float):
        y, inverse = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, eps)
        ctx.save_for_backward(x, inverse, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        x, inverse, weight = ctx.saved_tensors
        needed = list(ctx.needs_input_grad[:2])
        return *torch.ops.aten._fused_rms_norm_backward(gy, x, weight.shape, inverse, weight, needed), None


def _rms_norm(module: nn.Module, eps: float, x: Tensor) -> Tensor:
    return _RMSNorm.apply(x, module.get_parameter("weight").to(x.dtype), eps)


def _embedding(forward: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
    return autocast(forward(ids))
