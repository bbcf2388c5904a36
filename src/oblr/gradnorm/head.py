"""Log-probabilities without ever holding the logits of all tokens: the head, a slice of the vocabulary at a time.

A slice of the head's rows is a linear layer of its own, and squared norms add up over rows. So everything that is
asked of the head is a sum over slices of what `LinearUse` answers; the logits of a slice are computed again whenever
they are needed, from the inputs and the log-normalisers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from oblr.gradnorm.contractions import LinearNorms
from oblr.gradnorm.precision import autocast
from oblr.gradnorm.uses import EmbeddingRows, LinearUse, Merged, Use
from oblr.packing import Segments
from oblr.types import TokenScores

#: Most logits held at once, float32.
SLICE = 2**26


@dataclass(frozen=True)
class HeadUse(Use):
    """The head as a use whose output gradient is found slice by slice.

    Attributes:
        b: coefficient of each target's log-probability in the differentiated sum, [n].
        a: inputs of the head [n, D].  weight: [V, D].  targets: int64 [n].
        log_normaliser: log-sum-exp of each position's logits over the temperature, [n].
    """

    a: Tensor
    weight: Tensor
    targets: Tensor
    log_normaliser: Tensor
    temperature: float

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self:
        weight = self.module.get_parameter(self.name)
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        return replace(super().weighted(coefficients, merged), weight=whole.detach().to(self.a.dtype))

    def slices(self) -> Iterator[tuple[int, Tensor, LinearUse]]:
        """(first row, the rows, their use) of each slice; ``∂log π/∂logits = (onehot − π)/temperature``."""
        for start, rows in row_slices(self.weight, len(self.a)):
            b = _logits(self.a, rows, self.temperature).sub_(self.log_normaliser[:, None]).exp_().neg_()
            inside = (self.targets >= start) & (self.targets < start + len(rows))
            b[inside.nonzero().squeeze(1), self.targets[inside] - start] += 1
            b.mul_(self.b[:, None] / self.temperature)
            yield start, rows, LinearUse(self.module, self.name, b, self.segments, self.a)

    def input_gradient(self) -> Tensor:
        """Gradient of the head's inputs [n, D]."""
        return sum((use.b.to(rows.dtype) @ rows for _, rows, use in self.slices()), torch.zeros_like(self.a))

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        return torch.stack([use.square_norms(linear_norms) for _, _, use in self.slices()]).sum(0)

    def gradient(self) -> tuple[Tensor, Tensor]:
        total = torch.empty(self.weight.shape, device=self.a.device)
        norms = torch.zeros(self.segments.count, device=self.a.device)
        for start, rows, use in self.slices():
            total[start : start + len(rows)], square_norms = use.gradient()
            norms += square_norms
        return total, norms

    def cross_terms(self, rows: EmbeddingRows) -> Tensor:
        slices = ((start, start + len(own), use) for start, own, use in self.slices())
        return torch.stack([use.cross_terms(rows.between(start, end)) for start, end, use in slices]).sum(0)


def row_slices(weight: Tensor, n: int) -> Iterator[tuple[int, Tensor]]:
    """Consecutive rows, as many as ``n`` positions may have logits for at once."""
    size = max(1, SLICE // max(n, 1))
    for start in range(0, len(weight), size):
        yield start, weight[start : start + size]


def is_plain(head: nn.Module) -> bool:
    """Whether it can be sliced: only a linear layer without bias can."""
    return isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward and head.bias is None


def needs_slices(head: nn.Linear, n: int) -> bool:
    """Whether ``n`` positions have too many logits to be held at once."""
    return n * head.out_features > SLICE


def _logits(h: Tensor, rows: Tensor, temperature: float) -> Tensor:
    return (h @ rows.mT).float() / temperature


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, anchor: Tensor, targets: Tensor, temperature: float, head: Any):
        ctx.dtype, weight = weight.dtype, autocast(weight)  # the gradient is the master weight's
        peak = torch.full((len(h),), -torch.inf, device=h.device)
        total, linear, square = (torch.zeros_like(peak) for _ in range(3))
        target = torch.empty_like(peak)
        for start, rows in row_slices(weight, len(h)):  # sums of e^z, z·e^z and e^2z, rescaled as the peak rises
            z = _logits(h, rows, temperature)
            inside = ((targets >= start) & (targets < start + len(rows))).nonzero().squeeze(1)
            target[inside] = z[inside, targets[inside] - start]
            higher = torch.maximum(peak, z.amax(1))
            decay, e = (peak - higher).exp(), (z - higher[:, None]).exp()
            total = total * decay + e.sum(1)
            linear = linear * decay + (e * z).sum(1)
            square = square * decay.square() + e.square().sum(1)
            peak = higher
        log_normaliser = peak + total.log()
        ctx.save_for_backward(h, weight, targets, log_normaliser)
        ctx.temperature, ctx.head, ctx.tape = temperature, head, getattr(head, "tape", None)
        entropy, collision = log_normaliser - linear / total, square / total.square()
        ctx.mark_non_differentiable(entropy, collision)
        return target - log_normaliser, entropy, collision

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Any):
        h, weight, targets, log_normaliser = ctx.saved_tensors
        segments = _whole(h) if ctx.tape is None else ctx.tape.head_segments
        use = HeadUse(ctx.head, "weight", g, segments, h, weight, targets, log_normaliser, ctx.temperature)
        gradient = None
        if ctx.tape is not None and ctx.head.weight.requires_grad:
            gradient = ctx.tape.take_head(use)
        elif ctx.needs_input_grad[1]:
            gradient = use.gradient()[0]
        grad_h = use.input_gradient() if ctx.needs_input_grad[0] else None
        return grad_h, gradient if gradient is None else gradient.to(ctx.dtype), None, None, None, None


def _whole(h: Tensor) -> Segments:
    return Segments(torch.zeros(len(h), dtype=torch.long, device=h.device), 1)


def head_scores(head: nn.Linear, h: Tensor, targets: Tensor, temperature: float) -> TokenScores:
    """Scores of ``targets`` [n] from the head's inputs ``h`` [n, D]; what :func:`capture` sees of it, it sees."""
    tape = getattr(head, "tape", None)
    weight = head.weight if tape is None else tape.parameter(head.weight)
    anchor = head.weight.new_zeros(()) if tape is None else tape.anchor
    logprobs, entropy, collision = _HeadScores.apply(autocast(h), weight, anchor, targets, temperature, head)
    return TokenScores(logprobs, entropy, collision, h.detach())
