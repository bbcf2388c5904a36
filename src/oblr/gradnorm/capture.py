"""See every layer's input and output gradient during one backward pass, and turn them into norms and gradients.

`capture` replaces the forward of each layer that owns trainable parameters by an autograd function of the same value,
whose backward hands the layer's use to a :class:`~oblr.gradnorm.tape.Tape`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from oblr.errors import SettingError
from oblr.gradnorm.contractions import ExactNorms, LinearNorms, product
from oblr.gradnorm.precision import autocast, rounded
from oblr.gradnorm.tape import Mode, Tape
from oblr.gradnorm.uses import EmbeddingUse, LinearUse, SumUse
from oblr.kernels import on_gpu
from oblr.segments import Segments

#: Layers that have been found to be plain RMSNorms.
_RMS_NORMS: WeakSet[nn.Module] = WeakSet()


def _cast(gradient: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if gradient is None else gradient.to(dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, *use: Any):
        ctx.dtype, ctx.use, weight = weight.dtype, use, rounded(weight)  # the gradient is the master weight's
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, autocast(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (x, weight), (tape, module, (train_weight, train_bias)) = ctx.saved_tensors, ctx.use
        head = module is tape.head
        segments, b = tape.head_segments if head else tape.segments, gy.flatten(0, -2)
        grad_weight = grad_bias = None
        if train_weight:
            use = LinearUse(module, "weight", b, segments, x.flatten(0, -2), tied=head and tape.tied)
            grad_weight = tape.take_head(use) if head else tape.take(use)
        if train_bias:
            grad_bias = tape.take(SumUse(module, "bias", segments.sum(b.float()), segments))
        gx = gy @ weight if ctx.needs_input_grad[0] else None
        return gx, _cast(grad_weight, ctx.dtype), _cast(grad_bias, ctx.dtype), None, None, None, None


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, anchor: Tensor, eps: float, tape: Tape, module: nn.Module):
        if on_gpu(x):
            y, inverse = torch.ops.aten._fused_rms_norm(x, weight.shape, weight.to(x.dtype), eps)
        else:
            inverse = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
            y = (x.float() * inverse).to(x.dtype) * weight
        ctx.save_for_backward(x, inverse, weight)
        ctx.tape, ctx.module = tape, module
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        """``∂f/∂x = (w⊙δ − x̂ · mean(w⊙δ⊙x̂)) / rms(x)``."""
        (x, inverse, weight), tape = ctx.saved_tensors, ctx.tape
        if on_gpu(x):
            gx, _ = torch.ops.aten._fused_rms_norm_backward(
                gy.to(x.dtype), x, weight.shape, inverse, weight.to(x.dtype), [True, False]
            )
            products = torch.mul(gy, x, out=torch.empty_like(x, memory_format=torch.contiguous_format))
        else:
            normed = x.float() * inverse
            products = gy.float() * normed.to(x.dtype)
            mean = products @ (weight.float() / len(weight))
            gx = (gy.float() * weight).addcmul_(normed, mean[..., None], value=-1).mul_(inverse)
            inverse = torch.ones_like(inverse)
        # Σ_t δ_t ⊙ x̂_t of each segment, over the heads that share the scale too
        count, n, heads = tape.segments.count, len(tape.segments.host), inverse.numel() // len(tape.segments.host)
        scaled = torch.empty(count, n, heads, dtype=products.dtype, device=x.device)
        torch.mul(tape.segments.members[:, :, None], inverse.reshape(1, n, heads), out=scaled)
        sums = product(scaled.flatten(1), products.reshape(-1, len(weight)))
        grad_weight = tape.take(SumUse(ctx.module, "weight", sums, tape.segments))
        return gx.to(x.dtype), _cast(grad_weight, weight.dtype), None, None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, anchor: Tensor, tape: Tape, module: nn.Embedding):
        ctx.save_for_backward(ids, weight)
        ctx.tape, ctx.module = tape, module
        x = F.embedding(ids, weight)
        return autocast(x) if on_gpu(x) else x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (ids, weight), tape = ctx.saved_tensors, ctx.tape
        e, known = gy.flatten(0, -2), tape.token_ids is not None and ctx.module is tape.embedding
        if ctx.module.padding_idx is not None:  # like nn.Embedding: this row has no gradient
            e = e * (ids.flatten() != ctx.module.padding_idx)[:, None]
        token_ids = tape.token_ids if known else ids.flatten().cpu()
        gradient = tape.take(EmbeddingUse(ctx.module, "weight", e, tape.segments, token_ids, tape.tied_head))
        tape.tied_head = None
        return None, _cast(gradient, weight.dtype), None, None, None


def rms_norm_epsilon(module: nn.Module) -> float | None:
    """ε if ``module`` computes ``w ⊙ x/√(mean x² + ε)``: checked on numbers, since variants share the name."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if module in _RMS_NORMS:  # a capture is made for every micro-batch; the formula does not change between them
        return eps
    if eps is None or weight is None or weight.ndim != 1 or len(list(module.parameters())) != 1:
        return None
    weight = torch.linspace(0.5, 2, len(weight))  # not the weight itself, which may be sharded
    x = torch.linspace(-1, 1, 2 * len(weight)).view(2, -1)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    if not torch.allclose(functional_call(module, {"weight": weight}, (x,)), expected):
        return None
    _RMS_NORMS.add(module)
    return eps


def _captured_forward(name: str, module: nn.Module, tape: Tape) -> Callable[..., Tensor]:
    """The replacement forward of a layer that owns trainable parameters."""
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        trained = [p is not None and p.requires_grad for p in (module.weight, module.bias)]
        return lambda x: _Linear.apply(
            tape.input(x),
            tape.parameter(module.weight),
            tape.parameter(module.bias),
            tape.anchor,
            tape,
            module,
            trained,
        )
    if isinstance(module, nn.Embedding) and module.max_norm is None and not module.scale_grad_by_freq:
        return lambda ids: _Embedding.apply(ids, tape.parameter(module.weight), tape.anchor, tape, module)
    eps = rms_norm_epsilon(module)
    if eps is not None:
        return lambda x: _RMSNorm.apply(x, tape.parameter(module.weight), tape.anchor, eps, tape, module)
    raise SettingError(
        "policy.path",
        f"layer {name!r} ({type(module).__name__}) owns trainable parameters whose gradient norm is not known",
        "freeze it, or teach oblr.gradnorm.capture its contraction",
    )


@contextmanager
def capture(
    model: nn.Module,
    segments: Segments,
    head_segments: Segments,
    mode: Mode = "norms",
    linear_norms: LinearNorms | None = None,
    token_ids: Tensor | None = None,
) -> Iterator[Tape]:
    """Measure ``‖∇θ f_s‖²`` for every segment ``s`` while ``Σ_s f_s`` is differentiated inside the context.

    Frozen parameters are left out. Forward and backward both belong inside; attention must not cross segments.

    Args:
        model: a Hugging Face causal LM of linear, RMSNorm and embedding layers; its head may be tied.
        segments, head_segments, mode, token_ids: see :class:`~oblr.gradnorm.tape.Tape`.
        linear_norms: likewise; exact unless given.

    Raises:
        SettingError: a layer of another kind owns trainable parameters.
    """
    tape = Tape(model, segments, head_segments, mode, linear_norms or ExactNorms(), token_ids)
    tape.head.tape = tape  # for head_scores, which does without the head's forward
    patched: list[tuple[nn.Module, Any]] = []
    try:
        for name, module in model.named_modules():
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                captured, before = _captured_forward(name, module, tape), vars(module).get("forward")
                module.forward = captured  # type: ignore[method-assign]
                patched.append((module, before))
        yield tape
    finally:
        tape.forget_inputs()
        del tape.head.tape
        for module, before in patched:
            del module.forward
            if before is not None:
                module.forward = before  # type: ignore[method-assign]
