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

from oblr import kernels
from oblr.batch.segments import Segments
from oblr.batch.types import TokenStatistics
from oblr.gradnorm import contractions
from oblr.gradnorm.contractions import LinearNorms
from oblr.gradnorm.loaded import is_sharded
from oblr.gradnorm.precision import autocast, no_autocast, rounded
from oblr.gradnorm.uses import EmbeddingRows, Kept, LinearUse, Use, Weighting

#: Most logits held at once, float32.
SLICE = 2**26
#: A slice has a multiple of so many rows: a GPU takes three times as long for a matrix whose rows do not begin at
#: multiples of 16 bytes.
ALIGNED = 128


@dataclass(frozen=True)
class HeadUse(Use):
    """The head as a use whose output gradient is found slice by slice.

    Attributes:
        b: coefficient of each target's log-probability in the differentiated sum, [n].
        a: inputs of the head [n, D].  weight: [V, D].  targets: int64 [n].
        log_normaliser: log-sum-exp of each position's logits over the temperature, [n].
        input_gradient: float32 [n, D]; whoever goes through the slices adds the gradient of the inputs to it, if there.
    """

    a: Tensor
    weight: Tensor
    targets: Tensor
    log_normaliser: Tensor
    temperature: float
    input_gradient: Tensor | None = None

    def weighted(self, weighting: Weighting) -> Self:
        use, weight = super().weighted(weighting), self.module.get_parameter(self.name)
        return replace(use, weight=weight.full_tensor().to(self.a.dtype)) if is_sharded(weight) else use

    def slices(self) -> Iterator[tuple[int, LinearUse]]:
        """First row and use of each slice; ``∂log π/∂logits = (onehot − π)/temperature``, in the inputs' precision."""
        scale = (self.b / self.temperature)[:, None]
        for start, rows in row_slices(self.weight, len(self.a)):
            p = _logits(self.a, rows, self.temperature).sub_(self.log_normaliser[:, None]).exp_()
            inside, column = _inside(self.targets, start, len(rows))
            at_target = scale * (1 - p.gather(1, column))  # not of what has been rounded: 1 − π may be small
            b = torch.mul(p, -scale, out=p if p.dtype == self.a.dtype else torch.empty_like(p, dtype=self.a.dtype))
            b.scatter_(1, column, torch.where(inside, at_target.to(b.dtype), b.gather(1, column)))
            if self.input_gradient is not None:
                self.input_gradient.add_(contractions.product(b, rows))
            yield start, LinearUse(self.module, self.name, b, self.segments, self.a)

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        return torch.stack([use.square_norms(linear_norms) for _, use in self.slices()]).sum(0)

    def keep(self, linear_norms: LinearNorms) -> tuple[Kept, Tensor]:
        if not kernels.on_gpu(self.a):
            return replace(self, input_gradient=None), self.square_norms(linear_norms)
        # What all layers' output gradients take is several times as much.
        kept = [use for _, use in self.slices()]
        norms = torch.stack([use.square_norms(linear_norms) for use in kept]).sum(0)
        return KeptSlices(self.module, self.name, kept), norms

    def gradient(self, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = torch.zeros(self.weight.shape, device=self.a.device) if into is None else into
        norms = torch.zeros(self.segments.count, device=self.a.device)
        for start, use in self.slices():
            norms += use.gradient(total[start : start + use.b.shape[1]])[1]
        return total, norms

    def cross_terms(self, rows: EmbeddingRows) -> Tensor:
        terms = []
        for span, (table, ids) in zip(self.segments.spans, rows.of_each(), strict=True):
            h, targets, b, log_normaliser = (
                contractions.tokens(x, span) for x in (self.a, self.targets, self.b, self.log_normaliser)
            )
            columns = _logits(h, self.weight.index_select(0, ids), self.temperature).sub_(log_normaliser[:, None])
            columns = (targets[:, None] == ids).float() - columns.exp_()
            products = contractions.product(h, table.to(h.dtype).mT)
            terms.append(2 / self.temperature * (b[:, None] * columns * products).sum())
        return torch.stack(terms)


@dataclass(frozen=True)
class KeptSlices:
    """The head's output gradients themselves, slice by slice."""

    module: nn.Module
    name: str
    slices: list[LinearUse]

    def combine(self, weighting: Weighting, into: Tensor | None) -> tuple[Tensor, Tensor]:
        (a, segments), starts = (self.slices[0].a, self.slices[0].segments), range(len(self.slices))
        width, rows = self.slices[0].b.shape[1], sum(use.b.shape[1] for use in self.slices)
        into = torch.zeros(rows, a.shape[1], device=a.device) if into is None else into
        a, groups = weighting.times(a, segments), weighting.merged(segments)
        parts = (replace(use, a=a, segments=groups) for use in self.slices)
        found = [use.gradient(into[width * k : width * (k + 1)])[1] for k, use in zip(starts, parts, strict=True)]
        return into, torch.stack(found).sum(0)


def row_slices(weight: Tensor, n: int) -> Iterator[tuple[int, Tensor]]:
    """Consecutive rows, as many as ``n`` positions may have logits for at once."""
    size = max(1, SLICE // max(n, 1))
    size -= size % ALIGNED if size > ALIGNED else 0
    for start in range(0, len(weight), size):
        yield start, weight[start : start + size]


def is_plain(head: nn.Module) -> bool:
    """Whether it can be sliced: only a linear layer without bias can."""
    return isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward and head.bias is None


def needs_slices(head: nn.Linear, n: int) -> bool:
    """Whether ``n`` positions have too many logits to be held at once."""
    return n * head.out_features > SLICE


def _logits(h: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Float32 [n, rows]."""
    z = contractions.product(h, rows.mT)
    return z if temperature == 1 else z.div_(temperature)


def _inside(targets: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Whether targets [n] are among the rows from ``start`` on, and their places there, if they are; [n, 1] each."""
    column = targets[:, None] - start
    return (column >= 0) & (column < size), column.clamp(0, size - 1)


def _statistics(h: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """Log-sum-exp of each position's logits z, their mean under π, ``Σ π²`` and the target's; float32 [n] each.

    The slices' own are put together by the share of π that each slice has.
    """
    found, target = [], torch.zeros(len(h), device=h.device)
    for start, rows in row_slices(weight, len(h)):
        z = _logits(h, rows, temperature)
        inside, column = _inside(targets, start, len(rows))
        target = torch.where(inside.squeeze(1), z.gather(1, column).squeeze(1), target)
        peak, place = z.max(1, keepdim=True)
        p = z.softmax(1)
        log_sum = (peak - p.gather(1, place).log()).squeeze(1)
        mean = torch.bmm(p[:, None], z[:, :, None]).flatten()
        found.append(torch.stack([log_sum, mean, torch.linalg.vector_norm(p, dim=1).square()]))
    log_sums, means, squares = torch.stack(found, 1)
    log_normaliser = log_sums.logsumexp(0)
    shares = (log_sums - log_normaliser).exp()
    return log_normaliser, (shares * means).sum(0), (shares.square() * squares).sum(0), target


class _HeadStatistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, anchor: Tensor, targets: Tensor, temperature: float, head: Any):
        ctx.dtype, weight = weight.dtype, rounded(weight)  # the gradient is the master weight's
        with no_autocast(h):
            log_normaliser, mean, collision, target = _statistics(h, weight, targets, temperature)
        ctx.save_for_backward(h, weight, targets, log_normaliser)
        ctx.temperature, ctx.head, ctx.tape = temperature, head, getattr(head, "tape", None)
        entropy = log_normaliser - mean
        ctx.mark_non_differentiable(entropy, collision)
        return target - log_normaliser, entropy, collision

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Any):
        h, weight, targets, log_normaliser = ctx.saved_tensors
        segments = _whole(h) if ctx.tape is None else ctx.tape.head_segments
        grad_h = torch.zeros_like(h, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        use = HeadUse(ctx.head, "weight", g, segments, h, weight, targets, log_normaliser, ctx.temperature, grad_h)
        with no_autocast(h):
            gradient = None
            if ctx.tape is not None and ctx.head.weight.requires_grad:
                gradient = ctx.tape.take_head(use)
            elif ctx.needs_input_grad[1]:
                gradient = use.gradient()[0].to(ctx.dtype)
            else:
                for _ in use.slices():  # for grad_h alone
                    pass
        return grad_h if grad_h is None else grad_h.to(h.dtype), gradient, None, None, None, None


def _whole(h: Tensor) -> Segments:
    return Segments(torch.zeros(len(h), dtype=torch.long), 1, h.device)


def head_statistics(head: nn.Linear, h: Tensor, targets: Tensor, temperature: float) -> TokenStatistics:
    """Scores of ``targets`` [n] from the head's inputs ``h`` [n, D]; what :func:`capture` sees of it, it sees."""
    tape = getattr(head, "tape", None)
    weight = head.weight if tape is None else tape.parameter(head.weight)
    anchor = head.weight.new_zeros(()) if tape is None else tape.anchor
    logprobs, entropy, collision = _HeadStatistics.apply(autocast(h), weight, anchor, targets, temperature, head)
    return TokenStatistics(logprobs, entropy, collision, h.detach())
