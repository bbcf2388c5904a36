"""See every layer's input and output gradient during one backward pass, and turn them into per-segment norms.

`capture` replaces the forward of each layer that owns trainable parameters by an autograd function of the same value.
Its backward hands ``(A, B)``, the layer's input and the gradient of its output, to the contractions, and returns the
weight gradient only where one is wanted: in a norm pass it returns none, so `.grad` stays as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from oblr.errors import SettingError
from oblr.gradnorm import contractions
from oblr.packing import Segments


@dataclass
class Tape:
    """What one captured backward pass adds up.

    Attributes:
        segments: of the tokens of the packed rows, which every layer but the head sees.
        head_segments: of the positions that the head is applied to.
        weights: whether the pass also produces weight gradients (``.grad``).
        square_norms: float64 [S]; ``‖∇θ f_s‖²`` of each segment's share ``f_s`` of the differentiated sum.
    """

    segments: Segments
    head_segments: Segments
    weights: bool
    anchor: Tensor = field(init=False)
    square_norms: Tensor = field(init=False)
    head: tuple[Tensor, Tensor] | None = None  # (inputs, logit gradients) of a tied head, until the embedding is met

    def __post_init__(self) -> None:
        device = self.segments.ids.device
        # Makes every captured layer's output require a gradient, whether or not its input does.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.square_norms = torch.zeros(self.segments.count, dtype=torch.float64, device=device)

    def parameter(self, p: Any) -> Any:
        """``p`` as autograd may see it: detached in a pass that wants no weight gradients."""
        return p if p is None or self.weights else p.detach()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, tape: Tape, role: "_Role"):
        ctx.save_for_backward(x, weight)
        ctx.tape, ctx.role = tape, role
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        x, weight = ctx.saved_tensors
        tape, role = ctx.tape, ctx.role
        segments = tape.head_segments if role.is_head else tape.segments
        a, b = x.flatten(0, -2), gy.flatten(0, -2)
        grad_weight = grad_bias = None
        if role.weight:
            if ctx.needs_input_grad[1]:
                grad_weight, norms = contractions.linear_gradient(a, b, segments)
                grad_weight = grad_weight.to(weight.dtype)
            else:
                norms = contractions.linear_square_norms(a, b, segments)
            tape.square_norms += norms
        if role.bias:
            total, norms = contractions.sum_square_norms(b, segments)
            tape.square_norms += norms
            grad_bias = total.to(weight.dtype) if ctx.needs_input_grad[2] else None
        if role.tied:
            tape.head = (a, b)
        return gy @ weight if ctx.needs_input_grad[0] else None, grad_weight, grad_bias, None, None, None


class _Scale(torch.autograd.Function):
    """``x̂ ⊙ w``, the trainable half of RMSNorm; q/k norms share ``w`` between heads."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, weight: Tensor, anchor: Tensor, tape: Tape):
        ctx.save_for_backward(normed, weight)
        ctx.tape = tape
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        normed, weight = ctx.saved_tensors
        tape = ctx.tape
        products = normed.float() * gy.float()
        products = products.reshape(len(tape.segments.ids), -1, products.shape[-1]).sum(1)
        total, norms = contractions.sum_square_norms(products, tape.segments)
        tape.square_norms += norms
        grad_weight = total.to(weight.dtype) if ctx.needs_input_grad[1] else None
        return gy * weight, grad_weight, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, anchor: Tensor, tape: Tape, padding_idx: int | None):
        ctx.save_for_backward(ids)
        ctx.tape, ctx.padding_idx, ctx.shape, ctx.dtype = tape, padding_idx, weight.shape, weight.dtype
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (ids,), tape = ctx.saved_tensors, ctx.tape
        ids, e = ids.flatten(), gy.flatten(0, -2)
        if ctx.padding_idx is not None:  # like nn.Embedding: this row has no gradient
            e = e * (ids != ctx.padding_idx)[:, None]
        tape.square_norms += contractions.embedding_square_norms(ids, e, tape.segments)
        if tape.head is not None:
            h, d = tape.head
            tape.square_norms += contractions.tied_cross_terms(ids, e, tape.segments, h, d, tape.head_segments)
            tape.head = None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = gy.new_zeros(ctx.shape, dtype=torch.float32).index_add_(0, ids, e.float()).to(ctx.dtype)
        return None, grad_weight, None, None, None


@dataclass(frozen=True)
class _Role:
    """Which parameters of a linear layer are trained, and whether it is the (tied) head."""

    weight: bool
    bias: bool
    is_head: bool
    tied: bool


def _rms_normalize(x: Tensor, eps: float) -> Tensor:
    variance = x.float().square().mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(variance + eps)).to(x.dtype)


def _is_rms_norm(module: nn.Module, eps: float) -> bool:
    """Whether ``module`` computes ``w ⊙ x/√(mean x² + ε)``: checked on numbers, since variants share the name."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 1 or len(list(module.parameters())) != 1:
        return False
    probe = {"weight": torch.linspace(0.5, 2, len(weight))}  # not the weight itself, which may be sharded
    x = torch.linspace(-1, 1, 2 * len(weight)).view(2, -1)
    return torch.allclose(functional_call(module, probe, (x,)), _rms_normalize(x, eps) * probe["weight"])


def _captured_forward(name: str, module: nn.Module, model: nn.Module, tape: Tape) -> Callable[..., Tensor]:
    """The replacement forward of a layer that owns trainable parameters."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        embedding = model.get_input_embeddings()  # type: ignore[operator]
        role = _Role(
            weight=module.weight.requires_grad,
            bias=module.bias is not None and module.bias.requires_grad,
            is_head=module is head,
            tied=module is head and module.weight is embedding.weight,
        )
        return lambda x: _Linear.apply(
            x, tape.parameter(module.weight), tape.parameter(module.bias), tape.anchor, tape, role
        )
    if isinstance(module, nn.Embedding) and module.max_norm is None and not module.scale_grad_by_freq:
        padding_idx = module.padding_idx
        return lambda ids: _Embedding.apply(ids, tape.parameter(module.weight), tape.anchor, tape, padding_idx)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if eps is not None and _is_rms_norm(module, eps):
        return lambda x: _Scale.apply(_rms_normalize(x, eps), tape.parameter(module.weight), tape.anchor, tape)
    raise SettingError(
        "policy.path",
        f"layer {name!r} ({type(module).__name__}) owns trainable parameters whose gradient norm is not known",
        "freeze it, or teach oblr.gradnorm.capture its contraction",
    )


@contextmanager
def capture(model: nn.Module, segments: Segments, head_segments: Segments, *, weights: bool = False) -> Iterator[Tape]:
    """Measure ``‖∇θ f_s‖²`` for every segment ``s`` while ``Σ_s f_s`` is differentiated inside the context.

    Frozen parameters are left out. Forward and backward both belong inside; attention must not cross segments.

    Args:
        model: a Hugging Face causal LM of linear, RMSNorm and embedding layers; its head may be tied.
        segments: of the tokens of its input rows, flattened.
        head_segments: of the positions that the head is applied to, in the same order.
        weights: also accumulate weight gradients into ``.grad``, as a plain backward would.

    Raises:
        SettingError: a layer of another kind owns trainable parameters.
    """
    tape = Tape(segments, head_segments, weights)
    patched = []
    try:
        for name, module in model.named_modules():
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                module.forward = _captured_forward(name, module, model, tape)  # type: ignore[method-assign]
                patched.append(module)
        yield tape
    finally:
        for module in patched:
            del module.forward
