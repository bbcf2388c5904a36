"""One parameter's use in a backward pass: a layer's input, the gradient of its output, and what follows from the two.

Every gradient is linear in the output gradient, so a use can be rescaled sequence by sequence, and merged into groups,
after the backward pass that it was seen in.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from oblr import kernels
from oblr.batch.segments import Segments, distinct_tokens
from oblr.gradnorm import contractions
from oblr.gradnorm.contractions import LinearNorms, same

#: How much less room the gradients of long segments must take on a GPU than what they are made of, if they are to be
#: kept: to weight and add them up, it reads them once more.
WORTH = 1.25


class Weighting:
    """What the sequences of a micro-batch count in its gradient, and the groups that they belong to.

    Args:
        coefficients: ``c_s`` [S].  group_size: consecutive segments a group.
    """

    def __init__(self, coefficients: Tensor, group_size: int):
        self.coefficients, self.group_size = coefficients.float(), group_size
        self.ones = torch.ones(len(coefficients) // group_size, device=coefficients.device)
        self.known: list[tuple[Segments, Segments, Tensor]] = []
        self.last: tuple[Tensor, Tensor] | None = None

    def _of(self, segments: Segments) -> tuple[Segments, Segments, Tensor]:
        for known in self.known:
            if known[0] is segments:
                return known
        per_token = self.coefficients[segments.ids.clamp(min=0)]
        self.known.append((segments, segments.merge(self.group_size), per_token))
        return self.known[-1]

    def merged(self, segments: Segments) -> Segments:
        """The same tokens under groups."""
        return self._of(segments)[1]

    def times(self, x: Tensor, segments: Segments) -> Tensor:
        """Token rows ``x`` [n, …], each times the coefficient of its segment, which is not rounded before."""
        if not self.has(x):
            per_token = self._of(segments)[2].view(-1, *[1] * (x.ndim - 1))
            self.last = x, torch.mul(x, per_token, out=torch.empty_like(x))
        assert self.last is not None
        return self.last[1]

    def has(self, x: Tensor) -> bool:
        """Whether :meth:`times` has just been asked for this one: layers that read the same input share it."""
        return self.last is not None and same(self.last[0], x)


class Kept(Protocol):
    """What is remembered of a use until the coefficients are known.

    Attributes:
        module, name: the layer, and which of its parameters.
    """

    @property
    def module(self) -> nn.Module: ...
    @property
    def name(self) -> str: ...

    def combine(self, weighting: Weighting, into: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradient of ``Σ_s c_s f_s``, as :meth:`Use.gradient`, and the squared norm of each group's part."""


@dataclass(frozen=True)
class Use(ABC):
    """One use of a parameter in a forward pass, of which the backward pass has found the output's gradient.

    Attributes:
        module, name: the layer, and which of its parameters.
        b: gradient of the layer's output, one row a token, [n, …], unless said otherwise.
        segments: of those tokens.
    """

    module: nn.Module
    name: str
    b: Tensor
    segments: Segments

    @abstractmethod
    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        """Squared norm of the parameter's gradient per segment [S]."""

    @abstractmethod
    def gradient(self, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The gradient summed over all segments, float32, and its squared norm per segment [S].

        Args:
            into: what the gradient is added to and returned in; None: a tensor of its own.
        """

    def keep(self, linear_norms: LinearNorms) -> tuple[Kept, Tensor]:
        """What to remember, and the squared norms."""
        return self, self.square_norms(linear_norms)

    def combine(self, weighting: Weighting, into: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.weighted(weighting).gradient(into)

    def weighted(self, weighting: Weighting) -> Self:
        """The same use with each segment's output gradient times its coefficient, and segments merged into groups."""
        return replace(self, b=weighting.times(self.b, self.segments), segments=weighting.merged(self.segments))


@dataclass(frozen=True)
class KeptGradients:
    """The gradients themselves, one a segment, [S, …]; on a GPU in the layer's precision, if they are large."""

    module: nn.Module
    name: str
    segments: Segments
    gradients: Tensor

    def combine(self, weighting: Weighting, into: Tensor | None) -> tuple[Tensor, Tensor]:
        stacked = self.gradients.flatten(1).unflatten(0, (-1, weighting.group_size))
        coefficients = weighting.coefficients.view(len(stacked), 1, -1)
        if stacked.dtype == torch.float32:
            parts = torch.bmm(coefficients, stacked).squeeze(1)
        else:  # coefficients are not rounded, sums neither
            first, *others = zip(coefficients.unbind(2), stacked.unbind(1), strict=True)
            parts = torch.mul(*first)
            for coefficient, gradient in others:
                parts.addcmul_(gradient, coefficient)
        into = torch.zeros(self.gradients.shape[1:], device=parts.device) if into is None else into
        into.view(-1).addmv_(parts.mT, weighting.ones)
        return into, contractions.square_norms(parts)


@dataclass(frozen=True)
class EmbeddingRows:
    """The rows of an embedding's gradient that are not zero, segment by segment.

    Attributes:
        table: the rows, float32 [U, D].
        ids: int64 [U]; the token of each.
        segments: of the rows; a token that several segments have has a row in each.
    """

    table: Tensor
    ids: Tensor
    segments: Segments

    def of_each(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows of each segment, and their tokens."""
        for span in self.segments.spans:
            yield contractions.tokens(self.table, span), contractions.tokens(self.ids, span)


class TiedHead(Protocol):
    """The use of a head whose weight is an embedding's table too."""

    def weighted(self, weighting: Weighting) -> Self: ...
    def cross_terms(self, rows: EmbeddingRows) -> Tensor:
        """``2⟨S, DᵀH⟩`` per segment [S], of embedding gradient S and head gradient DᵀH: what tying adds to norms."""


@dataclass(frozen=True)
class LinearUse(Use):
    """The weight in ``y = x Wᵀ`` with input rows ``a`` [n, d_in]; ``tied`` where it is an embedding's table too."""

    a: Tensor
    tied: bool = False

    def weighted(self, weighting: Weighting) -> Self:
        if self.a.shape[1] >= self.b.shape[1] and not weighting.has(self.a):
            return super().weighted(weighting)
        # The gradient is linear in the input too, and the input is smaller, or another layer's too.
        return replace(self, a=weighting.times(self.a, self.segments), segments=weighting.merged(self.segments))

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        return linear_norms(self.a, self.b, self.segments)

    def keep(self, linear_norms: LinearNorms) -> tuple[Kept, Tensor]:
        d_in, d_out, count = self.a.shape[1], self.b.shape[1], self.segments.count
        exact, gpu = isinstance(linear_norms, contractions.ExactNorms), kernels.on_gpu(self.b)
        size = count * d_in * d_out * (self.a.itemsize * WORTH if gpu else 4)
        if not exact or self.tied or self.a.nbytes + self.b.nbytes < size:
            return super().keep(linear_norms)
        # Long segments: their gradients take less room than what they are made of, and are then made only once.
        if gpu:
            parts = list(contractions.gradients(self.a, self.b, self.segments))
            gradients = torch.cat(parts) if len(parts) > 1 else parts[0]
            return KeptGradients(self.module, self.name, self.segments, gradients), contractions.norms(
                gradients
            ).square_()
        gradients = torch.empty(count, d_out, d_in, device=self.b.device)
        for gradient, span in zip(gradients, self.segments.spans, strict=True):
            contractions.linear_gradient(self.a, self.b, span, out=gradient)
        found = torch.stack([contractions.square_norm(gradient) for gradient in gradients])
        return KeptGradients(self.module, self.name, self.segments, gradients), found

    def gradient(self, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return contractions.grouped_gradient(self.a, self.b, self.segments, into)

    def cross_terms(self, rows: EmbeddingRows) -> Tensor:
        """``2 Σ_{u,v} D[u, v] ⟨S_v, H_u⟩`` per segment, over its positions u and the tokens v that it contains."""
        terms = []
        for span, (table, ids) in zip(self.segments.spans, rows.of_each(), strict=True):
            columns, h = contractions.tokens(self.b, span)[:, ids], contractions.tokens(self.a, span)
            terms.append(2 * (columns.float() * (h.float() @ table.mT)).sum())
        return torch.stack(terms)


@dataclass(frozen=True)
class SumUse(Use):
    """A parameter [size] whose gradient is a sum over tokens, of which ``b`` [S, size] has each segment's, float32.

    So are biases, and the scales of RMSNorms.
    """

    def square_norms(self, linear_norms: LinearNorms | None) -> Tensor:
        return contractions.square_norms(self.b)

    def keep(self, linear_norms: LinearNorms) -> tuple[Kept, Tensor]:
        return KeptGradients(self.module, self.name, self.segments, self.b), self.square_norms(linear_norms)

    def gradient(self, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return _added(self.b.sum(0), into), self.square_norms(None)


@dataclass(frozen=True)
class EmbeddingUse(Use):
    """Rows of a table looked up by tokens, ``token_ids`` [n] on the CPU; where the head is tied to it, its use."""

    token_ids: Tensor
    head: TiedHead | None

    def weighted(self, weighting: Weighting) -> Self:
        use = super().weighted(weighting)
        return replace(use, head=self.head and self.head.weighted(weighting))

    def rows(self) -> EmbeddingRows:
        distinct = distinct_tokens(self.token_ids, self.segments)
        table = torch.zeros(len(distinct.segments.host) + 1, self.b.shape[1], device=self.b.device)
        table.index_add_(0, distinct.places, self.b.float())
        return EmbeddingRows(table[:-1], distinct.ids, distinct.segments)

    def norms_of(self, rows: EmbeddingRows) -> Tensor:
        norms = rows.segments.sum(rows.table.square().sum(1))
        return norms if self.head is None else norms + self.head.cross_terms(rows)

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        return self.norms_of(self.rows())

    def gradient(self, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows, table = self.rows(), self.module.get_parameter(self.name)
        into = torch.zeros(table.shape, device=self.b.device) if into is None else into
        return into.index_add_(0, rows.ids, rows.table), self.norms_of(rows)


def _added(gradient: Tensor, into: Tensor | None) -> Tensor:
    return gradient if into is None else into.add_(gradient)
