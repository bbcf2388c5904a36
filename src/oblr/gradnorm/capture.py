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
from oblr.gradnorm import contractions
from oblr.gradnorm.head import HeadUse
from oblr.gradnorm.uses import EmbeddingUse, Gradients, LinearNorms, LinearUse, ScaleUse, TiedHead, Use
from oblr.packing import Segments

Mode = Literal["norms", "record", "weights"]
#: Layers that have been found to be plain RMSNorms.
_RMS_NORMS: WeakSet[nn.Module] = WeakSet()


class Tape:
    """What one captured backward pass adds up.

    Args:
        segments: of the tokens of the packed rows, which every layer but the head sees.
        head_segments: of the positions that the head is applied to.
        mode: what the backward pass makes besides the norms.
            ``norms``: nothing; ``.grad`` stays as it was.
            ``record``: nothing yet; uses are kept, and :meth:`accumulate` makes weighted gradients of them.
            ``weights``: weight gradients, as a plain backward does.
        linear_norms: how the norm of a linear layer's gradient is found.
        tied: whether the head's weight is the embedding's.

    Attributes:
        square_norms: float64 [S]; ``‖∇θ f_s‖²`` of each segment's share ``f_s`` of the differentiated sum.
    """

    def __init__(self, segments: Segments, head_segments: Segments, mode: Mode, linear_norms: LinearNorms, tied: bool):
        device = segments.ids.device
        self.segments, self.head_segments, self.mode, self.linear_norms = segments, head_segments, mode, linear_norms
        self.square_norms = torch.zeros(segments.count, dtype=torch.float64, device=device)
        # Makes every captured layer's output require a gradient, whether or not its input does.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.tied = tied
        self.tied_head: TiedHead | None = None
        self.uses: list[Use] = []

    def parameter(self, p: Any) -> Any:
        """``p`` as autograd may see it: detached unless the pass makes weight gradients."""
        return p if p is None or self.mode == "weights" else p.detach()

    def take(self, use: Use) -> Gradients:
        """Account for one use; returns the gradients that backward is to return, if any."""
        if self.mode == "weights":
            gradients, norms = use.gradients()
            self.square_norms += norms
            return gradients
        self.square_norms += use.square_norms(self.linear_norms)
        if self.mode == "record":
            self.uses.append(use)
        return {}

    def take_head(self, use: LinearUse | HeadUse) -> Gradients:
        """Account for the head; a tied one is remembered until the embedding is met."""
        if self.tied:
            self.tied_head = use
        return self.take(use)

    def accumulate(self, coefficients: Tensor, parent: Tensor) -> Tensor:
        """Add ``Σ_s c_s ∇θ f_s`` to ``.grad`` and forget the uses; under FSDP2 its mean over the ranks.

        Args:
            coefficients: ``c_s`` [S].  parent: int64 [S], the group of each segment.

        Returns:
            squared norm of each group's part, float64 [groups].
        """
        norms = torch.zeros(int(parent.max()) + 1, dtype=torch.float64, device=parent.device)
        rows, targets = self.segments.merge(parent), self.head_segments.merge(parent)
        while self.uses:
            use = self.uses.pop().weighted(coefficients, lambda s: rows if s is self.segments else targets)
            gradients, square_norms = use.gradients()
            norms += square_norms
            for name, gradient in gradients.items():
                _add_gradient(use.module.get_parameter(name), gradient)
        return norms


def _add_gradient(p: nn.Parameter, gradient: Tensor) -> None:
    if isinstance(p, DTensor):
        local = DTensor.from_local(gradient / p.device_mesh.size(), p.device_mesh, [Partial()] * p.device_mesh.ndim)
        gradient = local.redistribute(placements=p.placements)
    if p.grad is None:
        p.grad = gradient.to(p.dtype)
    else:
        p.grad += gradient


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, anchor: Tensor, tape: Tape, role: dict):
        ctx.save_for_backward(x, weight)
        ctx.tape, ctx.role = tape, role
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (x, weight), tape, role = ctx.saved_tensors, ctx.tape, ctx.role
        segments = tape.head_segments if role["head"] else tape.segments
        use = LinearUse(
            role["module"], gy.flatten(0, -2), segments, x.flatten(0, -2), role["train_weight"], role["train_bias"]
        )
        gradients = tape.take_head(use) if role["head"] else tape.take(use)
        grad_weight, grad_bias = (_cast(gradients.get(name), weight) for name in ("weight", "bias"))
        return gy @ weight if ctx.needs_input_grad[0] else None, grad_weight, grad_bias, None, None, None


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, normed: Tensor, weight: Tensor, anchor: Tensor, tape: Tape, module: nn.Module):
        ctx.save_for_backward(normed, weight)
        ctx.tape, ctx.module = tape, module
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (normed, weight), tape = ctx.saved_tensors, ctx.tape
        tokens = (len(tape.segments.ids), -1)
        gradients = tape.take(ScaleUse(ctx.module, gy.reshape(tokens), tape.segments, normed.reshape(tokens)))
        return gy * weight, _cast(gradients.get("weight"), weight), None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, anchor: Tensor, tape: Tape, module: nn.Embedding):
        ctx.save_for_backward(ids, weight)
        ctx.tape, ctx.module = tape, module
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor):
        (ids, weight), tape = ctx.saved_tensors, ctx.tape
        ids, e = ids.flatten(), gy.flatten(0, -2)
        if ctx.module.padding_idx is not None:  # like nn.Embedding: this row has no gradient
            e = e * (ids != ctx.module.padding_idx)[:, None]
        gradients = tape.take(EmbeddingUse(ctx.module, e, tape.segments, ids, tape.tied_head))
        tape.tied_head = None
        return None, _cast(gradients.get("weight"), weight), None, None, None


def _cast(gradient: Tensor | None, weight: Tensor) -> Tensor | None:
    return None if gradient is None else gradient.to(weight.dtype)


def _rms_normalize(x: Tensor, eps: float) -> Tensor:
    variance = x.float().square().mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(variance + eps)).to(x.dtype)


def _is_rms_norm(module: nn.Module, eps: float) -> bool:
    """Whether ``module`` computes ``w ⊙ x/√(mean x² + ε)``: checked on numbers, since variants share the name."""
    if module in _RMS_NORMS:  # a capture is made for every micro-batch; the formula does not change between them
        return True
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 1 or len(list(module.parameters())) != 1:
        return False
    probe = {"weight": torch.linspace(0.5, 2, len(weight))}  # not the weight itself, which may be sharded
    x = torch.linspace(-1, 1, 2 * len(weight)).view(2, -1)
    if not torch.allclose(functional_call(module, probe, (x,)), _rms_normalize(x, eps) * probe["weight"]):
        return False
    _RMS_NORMS.add(module)
    return True


def _captured_forward(name: str, module: nn.Module, model: nn.Module, tape: Tape) -> Callable[..., Tensor]:
    """The replacement forward of a layer that owns trainable parameters."""
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        role = {
            "module": module,
            "train_weight": module.weight.requires_grad,
            "train_bias": module.bias is not None and module.bias.requires_grad,
            "head": module is model.get_output_embeddings(),  # type: ignore[operator]
        }
        return lambda x: _Linear.apply(
            x, tape.parameter(module.weight), tape.parameter(module.bias), tape.anchor, tape, role
        )
    if isinstance(module, nn.Embedding) and module.max_norm is None and not module.scale_grad_by_freq:
        return lambda ids: _Embedding.apply(ids, tape.parameter(module.weight), tape.anchor, tape, module)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if eps is not None and _is_rms_norm(module, eps):
        return lambda x: _Scale.apply(_rms_normalize(x, eps), tape.parameter(module.weight), tape.anchor, tape, module)
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
    linear_norms: LinearNorms = contractions.linear_square_norms,
) -> Iterator[Tape]:
    """Measure ``‖∇θ f_s‖²`` for every segment ``s`` while ``Σ_s f_s`` is differentiated inside the context.

    Frozen parameters are left out. Forward and backward both belong inside; attention must not cross segments.

    Args:
        model: a Hugging Face causal LM of linear, RMSNorm and embedding layers; its head may be tied.
        segments, head_segments, mode, linear_norms: see :class:`Tape`.

    Raises:
        SettingError: a layer of another kind owns trainable parameters.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
    tape = Tape(segments, head_segments, mode, linear_norms, tied=head.weight is embedding.weight)
    head.tape = tape  # for head_scores, which does without the head's forward
    patched = []
    try:
        for name, module in model.named_modules():
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                module.forward = _captured_forward(name, module, model, tape)  # type: ignore[method-assign]
                patched.append(module)
        yield tape
    finally:
        del head.tape
        for module in patched:
            del module.forward
