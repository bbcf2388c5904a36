"""See every layer's input and output gradient during one backward pass, and turn them into norms and gradients.

`capture` replaces the forward of each layer that owns trainable parameters by an autograd function of the same value,
whose backward hands the layer's use to a `Tape`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Partial
from torch.func import functional_call

from oblr.errors import SettingError
from oblr.gradnorm.contractions import ExactNorms, LinearNorms, product, square_norm
from oblr.gradnorm.head import HeadUse
from oblr.gradnorm.precision import autocast, no_autocast, rounded
from oblr.gradnorm.uses import EmbeddingUse, Kept, LinearUse, SumUse, TiedHead, Use, Weighting
from oblr.kernels import on_gpu
from oblr.segments import Segments

Mode = Literal["norms", "record", "weights", "sum"]
#: Layers that have been found to be plain RMSNorms.
_RMS_NORMS: WeakSet[nn.Module] = WeakSet()


class GradientSum:
    """The gradient of one function whose backward passes are several; not yet in ``.grad``."""

    def __init__(self) -> None:
        self.parts: dict[tuple[nn.Module, str], Tensor] = {}

    def add(self, module: nn.Module, name: str, gradient: Tensor) -> None:
        if (module, name) in self.parts:
            self.parts[module, name] += gradient
        else:
            self.parts[module, name] = gradient

    def release(self) -> Tensor:
        """Add it to ``.grad``, see :func:`_add_gradient`; returns its squared norm, float64 []."""
        for (module, name), gradient in self.parts.items():
            _add_gradient(module.get_parameter(name), gradient)
        return torch.stack([square_norm(gradient).double() for gradient in self.parts.values()]).sum()


class Tape:
    """What one captured backward pass adds up.

    Args:
        model: the captured model.
        segments: of the tokens of the packed rows, which every layer but the head sees.
        head_segments: of the positions that the head is applied to.
        mode: what the backward pass makes besides the norms.
            ``norms``: nothing; ``.grad`` stays as it was.
            ``record``: nothing yet; uses are kept, and :meth:`accumulate` makes weighted gradients of them.
            ``weights``: weight gradients, as a plain backward does.
            ``sum``: weight gradients, added up in :attr:`sum` instead of ``.grad``.
        linear_norms: how the norm of a linear layer's gradient is found.
        token_ids: what the input embedding is given, flat, on the CPU; None: it is asked for.

    Attributes:
        sum: set it to go on with an earlier sum.
    """

    def __init__(
        self,
        model: nn.Module,
        segments: Segments,
        head_segments: Segments,
        mode: Mode,
        linear_norms: LinearNorms,
        token_ids: Tensor | None,
    ):
        device, self.token_ids = segments.device, token_ids
        self.segments, self.head_segments, self.mode, self.linear_norms = segments, head_segments, mode, linear_norms
        self.parts: list[Tensor] = []  # squared norms [S] of single parameters' gradients
        # Makes every captured layer's output require a gradient, whether or not its input does.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.head, self.embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
        self.tied = self.head.weight is self.embedding.weight
        self.sharded = isinstance(self.embedding.weight, DTensor)
        self.tied_head: TiedHead | None = None
        self.kept: list[Kept] = []
        self.sum = GradientSum()
        self.last_cast: tuple[Tensor, Tensor] | None = None

    @property
    def square_norms(self) -> Tensor:
        """``‖∇θ f_s‖²`` of each segment's share ``f_s`` of the differentiated sum, float64 [S]."""
        return _total(self.parts, self.segments)

    def parameter(self, p: Any) -> Any:
        """``p`` as autograd may see it: detached unless the pass makes weight gradients."""
        return p if p is None or self.mode == "weights" else p.detach()

    def input(self, x: Tensor) -> Tensor:
        """A linear layer's input in autocast's precision; q, k and v are given the same one."""
        if self.last_cast is None or self.last_cast[0] is not x:
            self.last_cast = x, autocast(x)
        return self.last_cast[1]

    def forget_inputs(self) -> None:
        """Let go of what belongs to autograd's graph, which refers to this tape: nothing would free the circle."""
        self.last_cast = None
        del self.linear_norms

    def take(self, use: Use) -> Tensor | None:
        """Account for one use; returns the gradient that backward is to return, if any."""
        if self.mode == "record":
            kept, norms = use.keep(self.linear_norms)
            self.kept.append(kept)
        elif self.mode == "norms":
            norms = use.square_norms(self.linear_norms)
        elif self.mode == "weights":
            p = use.module.get_parameter(use.name)
            into = None if self.sharded else _room(p)
            gradient, norms = use.gradient(into)
            self.parts.append(norms)
            return gradient if into is None else None  # FSDP2 shares out what autograd is given
        else:
            gradient, norms = use.gradient()
            owner = self.embedding if self.tied and use.module is self.head else use.module
            self.sum.add(owner, use.name, gradient)
        self.parts.append(norms)
        return None

    def take_head(self, use: LinearUse | HeadUse) -> Tensor | None:
        """Account for the head; a tied one is remembered until the embedding is met, unless gradients are added up."""
        if self.tied and self.mode != "sum":
            self.tied_head = use
        return self.take(use)

    def accumulate(self, coefficients: Tensor, group_size: int) -> Tensor:
        """Add ``Σ_s c_s ∇θ f_s`` to ``.grad`` and forget the uses; under FSDP2 its mean over the ranks.

        Args:
            coefficients: ``c_s`` [S].  group_size: segments a group.

        Returns:
            squared norm of each group's part, float64 [S / group_size].
        """
        weighting = Weighting(coefficients, group_size)
        norms: list[Tensor] = []
        with torch.no_grad(), no_autocast(coefficients):
            while self.kept:
                kept = self.kept.pop()
                p = kept.module.get_parameter(kept.name)
                into = _room(p)
                gradient, square_norms = kept.combine(weighting, into)
                norms.append(square_norms)
                if into is None:
                    _add_gradient(p, gradient)
        return _total(norms, weighting.merged(self.segments))


def _total(square_norms: list[Tensor], segments: Segments) -> Tensor:
    """Float64 [S]; over no parameters 0."""
    if not square_norms:
        return torch.zeros(segments.count, dtype=torch.float64, device=segments.device)
    return torch.stack(square_norms).sum(0, dtype=torch.float64)


def _room(p: nn.Parameter) -> Tensor | None:
    """``p``'s gradient so far, if more of it can be added in place."""
    fits = p.grad is not None and not isinstance(p.grad, DTensor) and p.grad.dtype == torch.float32
    return p.grad if fits else None


def _add_gradient(p: nn.Parameter, gradient: Tensor) -> None:
    if isinstance(p, DTensor):
        local = DTensor.from_local(gradient / p.device_mesh.size(), p.device_mesh, [Partial()] * p.device_mesh.ndim)
        gradient = local.redistribute(placements=p.placements)
    if p.grad is None:
        p.grad = gradient.to(p.device, p.dtype)
    else:
        p.grad += gradient.to(p.device)


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
        segments, head_segments, mode, token_ids: see :class:`Tape`.  linear_norms: likewise; exact unless given.

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
