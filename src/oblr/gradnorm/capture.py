"""See every layer's input and output gradient during one backward pass, and turn them into norms and gradients.

`capture` replaces the forward of each layer that owns trainable parameters by an autograd function of the same value,
whose backward hands the layer's use to a :class:`~oblr.gradnorm.tape.Tape`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from oblr import kernels
from oblr.batch.segments import Segments
from oblr.errors import SettingError
from oblr.gradnorm import kinds
from oblr.gradnorm.axes import token_rows
from oblr.gradnorm.contractions import ExactNorms, LinearNorms, product
from oblr.gradnorm.precision import autocast, rounded
from oblr.gradnorm.tape import Mode, Tape
from oblr.gradnorm.uses import EmbeddingUse, LinearUse, SumUse


def _cast(gradient: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if gradient is None else gradient.to(dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, *use: Any):
        ctx.dtype, ctx.use, weight = weight.dtype, use, rounded(weight)  # the gradient is the master weight's
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight.t() if use[3] else weight, autocast(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (x, weight), (tape, module, (train_weight, train_bias), transposed) = ctx.saved_tensors, ctx.use
        head = module is tape.head
        segments, b = tape.head_segments if head else tape.segments, gy.flatten(0, -2)
        grad_weight = grad_bias = None
        if train_weight:
            a = x.flatten(0, -2)
            left, right = (a, b) if transposed else (b, a)
            use = LinearUse(module, "weight", left, segments, right, tied=head and tape.tied)
            grad_weight = tape.take_head(use) if head else tape.take(use)
        if train_bias:
            grad_bias = tape.take(SumUse(module, "bias", segments.sum(b.float()), segments))
        gx = gy @ (weight.t() if transposed else weight) if ctx.needs_input_grad[0] else None
        return gx, _cast(grad_weight, ctx.dtype), _cast(grad_bias, ctx.dtype), None, None, None, None, None


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, anchor: Tensor, eps: float, tape: Tape, module: nn.Module):
        if kernels.on_gpu(x):
            ctx.dtype, weight = weight.dtype, weight.to(x.dtype)
            y, inverse = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, eps)
        else:
            inverse = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
            ctx.dtype, y = weight.dtype, (x.float() * inverse).to(x.dtype) * weight
        ctx.save_for_backward(x, inverse, weight)
        ctx.tape, ctx.module = tape, module
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        """``∂f/∂x = (w⊙δ − x̂ · mean(w⊙δ⊙x̂)) / rms(x)``."""
        (x, inverse, weight), tape = ctx.saved_tensors, ctx.tape
        if kernels.on_gpu(x):
            gx, _ = torch.ops.aten._fused_rms_norm_backward(
                gy.to(x.dtype), x, weight.shape, inverse, weight, [True, False]
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
        return gx.to(x.dtype), _cast(grad_weight, ctx.dtype), None, None, None, None


class _Scale(torch.autograd.Function):
    """Passes on what a layer ``y = A(x) + D(x) ⊙ w + b`` has computed with weights that autograd does not know."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, *use: Any):
        ctx.save_for_backward(x)
        ctx.dtype, ctx.use = weight.dtype, use
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (x,), (tape, module, forward, axis, (train_weight, train_bias)) = ctx.saved_tensors, ctx.use
        dimensions, grad_weight, grad_bias = module._parameters["weight"].ndim, None, None

        def sums(products: Tensor) -> Tensor:
            """Of each segment, over whatever shares the parameter too."""
            rows = token_rows(products, axis, tape.rows, dimensions).sum(1)
            return tape.segments.sum(rows).unflatten(1, products.shape[products.ndim - dimensions :])

        if train_weight:
            _, factor = kinds.scale_parts(module, forward, x.float())
            use = SumUse(module, "weight", sums(gy.float() * factor), tape.segments)
            grad_weight = tape.take(use)
        if train_bias:
            grad_bias = tape.take(SumUse(module, "bias", sums(gy.float()), tape.segments))
        return gy, None, _cast(grad_weight, ctx.dtype), _cast(grad_bias, ctx.dtype), *[None] * 6


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, anchor: Tensor, scale: Tensor, tape: Tape, module: nn.Embedding):
        ctx.save_for_backward(ids, weight)
        ctx.tape, ctx.module, ctx.scale = tape, module, scale.item()
        x = F.embedding(ids, weight)
        x = x if ctx.scale == 1 else x * scale
        return autocast(x) if kernels.on_gpu(x) else x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (ids, weight), tape = ctx.saved_tensors, ctx.tape
        own = ctx.module is tape.embedding
        e, known = gy.flatten(0, -2), tape.token_ids is not None and own
        if ctx.scale != 1:
            e = e * ctx.scale
        if ctx.module.padding_idx is not None:  # like nn.Embedding: this row has no gradient
            e = e * (ids.flatten() != ctx.module.padding_idx)[:, None]
        token_ids = tape.token_ids if known else ids.flatten().cpu()
        head = tape.tied_head if own else None
        gradient = tape.take(EmbeddingUse(ctx.module, "weight", e, tape.segments, token_ids, head))
        if own:
            tape.tied_head = None
        return None, _cast(gradient, weight.dtype), None, None, None, None


def _captured_forward(name: str, module: nn.Module, tape: Tape) -> Callable[..., Tensor]:
    """The replacement forward of a layer that owns trainable parameters."""
    trained = [p is not None and p.requires_grad for p in map(module._parameters.get, ("weight", "bias"))]
    forward: Callable[[Tensor], Tensor] = module.forward
    if kinds.is_linear(module) or kinds.is_transposed(module):
        transposed = kinds.is_transposed(module)

        def linear(x: Tensor) -> Tensor:
            if module is not tape.head:
                tape.check_rows(module, x, 1)
            weight, bias = (tape.parameter(p) for p in (module.weight, module.bias))
            return _Linear.apply(tape.input(x), weight, bias, tape.anchor, tape, module, trained, transposed)

        return linear
    if isinstance(module, nn.Embedding) and (scale := kinds.lookup_scale(module, forward)) is not None:

        def lookup(ids: Tensor) -> Tensor:
            if module is not tape.embedding:
                tape.check_rows(module, ids, 0)
            return _Embedding.apply(ids, tape.parameter(module.weight), tape.anchor, scale, tape, module)

        return lookup
    eps = kinds.rms_norm_epsilon(module)
    if eps is not None or kinds.is_scale(module, forward):
        dimensions = module.get_parameter("weight").ndim

        def scaled(x: Tensor) -> Tensor:
            axis, weight = tape.check_rows(module, x, dimensions, alone=False), tape.parameter(module.weight)
            if eps is not None and axis < 2:
                return _RMSNorm.apply(x, weight, tape.anchor, eps, tape, module)
            bias = tape.parameter(module._parameters.get("bias"))
            own = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
            with kinds.given(module, {key: p.detach() for key, p in own.items()}):
                y = forward(x)
            return _Scale.apply(y, x.detach(), weight, bias, tape.anchor, tape, module, forward, axis, trained)

        return scaled
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
        model: a Hugging Face causal LM of layers of :mod:`oblr.gradnorm.kinds`; its head may be tied.
        segments, head_segments, mode, token_ids: see :class:`~oblr.gradnorm.tape.Tape`.
        linear_norms: likewise; exact unless given.

    Raises:
        SettingError: a layer of another kind owns trainable parameters, or is used twice, or shares them, or is given
            something else than tokens.
    """
    tape = Tape(model, segments, head_segments, mode, linear_norms or ExactNorms(), token_ids)
    tape.head.tape = tape  # for head_statistics, which does without the head's forward
    seen = tape.embedding.register_forward_pre_hook(lambda _, given: tape.see(given[0]))
    owners: dict[nn.Parameter, str] = {}
    patched: list[tuple[nn.Module, Any]] = []
    try:
        for name, module in model.named_modules():
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                for p in module.parameters(recurse=False):
                    first = owners.setdefault(p, name)
                    if first != name and not (tape.tied and module in (tape.head, tape.embedding)):
                        raise SettingError(
                            "policy.path",
                            f"layers {first!r} and {name!r} share a parameter: the norm of its gradient is not known",
                            "use a model whose layers have parameters of their own",
                        )
                captured, before = _captured_forward(name, module, tape), vars(module).get("forward")
                module.forward = captured  # type: ignore[method-assign]
                patched.append((module, before))
        yield tape
    finally:
        tape.forget_inputs()
        seen.remove()
        del tape.head.tape
        for module, before in patched:
            del module.forward
            if before is not None:
                module.forward = before  # type: ignore[method-assign]
