"""One parameter's use in a backward pass: a layer's input, the gradient of its output, and what follows from the two.

Every gradient is linear in the output gradient, so a use can be rescaled sequence by sequence, and merged into groups,
after the backward pass that it was seen in.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from oblr.gradnorm import contractions
from oblr.gradnorm.contractions import LinearNorms
from oblr.packing import Segments, distinct_tokens

#: segments → the same tokens under coarser segments
Merged = Callable[[Segments], Segments]


class Kept(Protocol):
    """What is remembered of a use until the coefficients are known.

    Attributes:
        module, name: the layer, and which of its parameters.
    """

    @property
    def module(self) -> nn.Module: ...
    @property
    def name(self) -> str: ...

    def combine(self, coefficients: Tensor, merged: Merged, into: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradient of ``Σ_s c_s f_s``, as :meth:`Use.gradient`, and each merged segment's squared norm."""


@dataclass(frozen=True)
class Use(ABC):
    """Attributes:
    module, name: the layer, and which of its parameters.
    b: gradient of the layer's output, one row a token, [n, …].
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

    def combine(self, coefficients: Tensor, merged: Merged, into: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.weighted(coefficients, merged).gradient(into)

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self:
        """The same use with each segment's output gradient times its coefficient [S], and segments merged."""
        return replace(self, b=self.times(coefficients, self.b), segments=merged(self.segments))

    def times(self, coefficients: Tensor, x: Tensor) -> Tensor:
        """Token rows ``x`` [n, …], each times the coefficient of its segment, which is not rounded before."""
        per_token = coefficients.float()[self.segments.ids.clamp(min=0)]
        return torch.mul(x, per_token.view(-1, *[1] * (x.ndim - 1)), out=torch.empty_like(x))


@dataclass(frozen=True)
class KeptGradients:
    """The gradients themselves, one a segment, [S, …]."""

    module: nn.Module
    name: str
    segments: Segments
    gradients: Tensor

    def combine(self, coefficients: Tensor, merged: Merged, into: Tensor | None) -> tuple[Tensor, Tensor]:
        n_groups = merged(self.segments).count
        stacked = self.gradients.flatten(1).unflatten(0, (n_groups, -1))
        parts = torch.bmm(coefficients.to(stacked.dtype).view(n_groups, 1, -1), stacked).squeeze(1)
        total = parts.sum(0).view(self.gradients.shape[1:])
        return _added(total, into), torch.linalg.vector_norm(parts, dim=1).square()


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

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self: ...
    def cross_terms(self, rows: EmbeddingRows) -> Tensor:
        """``2⟨S, DᵀH⟩`` per segment [S], of embedding gradient S and head gradient DᵀH: what tying adds to norms."""


@dataclass(frozen=True)
class LinearUse(Use):
    """The weight in ``y = x Wᵀ`` with input rows ``a`` [n, d_in]; ``tied`` where it is an embedding's table too."""

    a: Tensor
    tied: bool = False

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self:
        if self.a.shape[1] >= self.b.shape[1]:
            return super().weighted(coefficients, merged)
        # The gradient is linear in the input too, and the input is smaller.
        return replace(self, a=self.times(coefficients, self.a), segments=merged(self.segments))

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        return linear_norms(self.a, self.b, self.segments)

    def keep(self, linear_norms: LinearNorms) -> tuple[Kept, Tensor]:
        d_in, d_out, count = self.a.shape[1], self.b.shape[1], self.segments.count
        exact = isinstance(linear_norms, contractions.ExactNorms)
        if not exact or self.tied or self.a.nbytes + self.b.nbytes < 4 * count * d_in * d_out:
            return super().keep(linear_norms)
        # Long segments: their gradients take less room than what they are made of, and are then made only once.
        gradients = torch.empty(count, d_out, d_in, device=self.b.device)
        norms = []
        for gradient, span in zip(gradients, self.segments.spans, strict=True):
            gradient.copy_(contractions.linear_gradient(self.a, self.b, span))
            norms.append(contractions.square_norm(gradient))
        return KeptGradients(self.module, self.name, self.segments, gradients), torch.stack(norms)

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
    """A parameter [size] whose gradient is a plain sum over tokens of the rows of ``b`` [n, heads · size].

    So are biases and, where ``b`` is the output gradient times the normalised input, the scales of RMSNorms; the
    norms of q and k share theirs between heads.
    """

    def sums(self) -> Tensor:
        size = len(self.module.get_parameter(self.name))
        return self.segments.sum(self.b.float()).unflatten(1, (-1, size)).sum(1)

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        return self.sums().square().sum(1)

    def keep(self, linear_norms: LinearNorms) -> tuple[Kept, Tensor]:
        sums = self.sums()
        return KeptGradients(self.module, self.name, self.segments, sums), sums.square().sum(1)

    def gradient(self, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
        sums = self.sums()
        return _added(sums.sum(0), into), sums.square().sum(1)


@dataclass(frozen=True)
class EmbeddingUse(Use):
    """Rows of a table looked up by tokens, ``token_ids`` [n] on the CPU; where the head is tied to it, its use."""

    token_ids: Tensor
    head: TiedHead | None

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self:
        use = super().weighted(coefficients, merged)
        return replace(use, head=self.head and self.head.weighted(coefficients, merged))

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
