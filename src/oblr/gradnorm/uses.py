"""One use of a layer in a backward pass: its input, the gradient of its output, and what follows from the two.

Every gradient is linear in the output gradient ``b``, so a use can be rescaled sequence by sequence, and merged into
groups, after the backward pass that it was seen in.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from oblr.gradnorm import contractions
from oblr.packing import Segments

#: ``(a, b, segments) → ‖Σ_t b_t a_tᵀ‖²`` per segment, exact or estimated.
LinearNorms = Callable[[Tensor, Tensor, Segments], Tensor]
#: segments → the same tokens under coarser segments
Merged = Callable[[Segments], Segments]
#: parameter name → gradient, float32
Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Use(ABC):
    """Attributes:
    module: the layer.
    b: gradient of its output, one row a token, [n, …].
    segments: of those tokens.
    """

    module: nn.Module
    b: Tensor
    segments: Segments

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self:
        """The same use with each segment's output gradient times its coefficient [S], and segments merged."""
        return replace(self, b=self.times(coefficients, self.b), segments=merged(self.segments))

    def times(self, coefficients: Tensor, x: Tensor) -> Tensor:
        """Token rows ``x`` [n, …], each times the coefficient of its segment."""
        per_token = coefficients.to(x.dtype)[self.segments.ids.clamp(min=0)]
        return x * per_token.view(-1, *[1] * (x.ndim - 1))

    @abstractmethod
    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        """Squared norm of the gradient of the layer's trainable parameters, per segment [S]."""

    @abstractmethod
    def gradients(self) -> tuple[Gradients, Tensor]:
        """Gradients summed over all segments, and the squared norm per segment [S]."""


class TiedHead(Protocol):
    """The use of a head whose weight is an embedding's table too."""

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self: ...
    def cross_terms(self, ids: Tensor, e: Tensor, segments: Segments) -> Tensor: ...


@dataclass(frozen=True)
class LinearUse(Use):
    """``y = x Wᵀ + bias`` with input rows ``a`` [n, d_in]; either parameter may be frozen."""

    a: Tensor
    weight: bool
    bias: bool

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self:
        if self.bias or self.a.shape[-1] >= self.b.shape[-1]:
            return super().weighted(coefficients, merged)
        # The weight's gradient is linear in the input too, and the input is smaller.
        return replace(self, a=self.times(coefficients, self.a), segments=merged(self.segments))

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        norms = torch.zeros(self.segments.count, device=self.b.device)
        if self.weight:
            norms += linear_norms(self.a, self.b, self.segments)
        if self.bias:
            norms += contractions.sum_square_norms(self.b, self.segments)[1]
        return norms

    def gradients(self) -> tuple[Gradients, Tensor]:
        gradients, norms = {}, torch.zeros(self.segments.count, device=self.b.device)
        if self.weight:
            gradients["weight"], weight_norms = contractions.linear_gradient(self.a, self.b, self.segments)
            norms += weight_norms
        if self.bias:
            gradients["bias"], bias_norms = contractions.sum_square_norms(self.b, self.segments)
            norms += bias_norms
        return gradients, norms

    def cross_terms(self, ids: Tensor, e: Tensor, segments: Segments) -> Tensor:
        """What tying this head to an embedding adds to both norms, see ``contractions.tied_cross_terms``."""
        return contractions.tied_cross_terms(ids, e, segments, self.a, self.b, self.segments)


@dataclass(frozen=True)
class ScaleUse(Use):
    """``y = x̂ ⊙ w``, the trainable half of RMSNorm; ``a`` is x̂, and q/k norms share ``w`` between heads."""

    a: Tensor

    def gradients(self) -> tuple[Gradients, Tensor]:
        size = len(self.module.get_parameter("weight"))
        products = (self.a.float() * self.b.float()).reshape(len(self.b), -1, size).sum(1)
        gradient, norms = contractions.sum_square_norms(products, self.segments)
        return {"weight": gradient}, norms

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        return self.gradients()[1]


@dataclass(frozen=True)
class EmbeddingUse(Use):
    """Rows of a table looked up by ``ids`` [n]; where the head is tied to it, ``head`` is the head's use."""

    ids: Tensor
    head: "TiedHead | None"

    def weighted(self, coefficients: Tensor, merged: Merged) -> Self:
        use = super().weighted(coefficients, merged)
        return replace(use, head=self.head and self.head.weighted(coefficients, merged))

    def square_norms(self, linear_norms: LinearNorms) -> Tensor:
        norms = contractions.embedding_square_norms(self.ids, self.b, self.segments)
        if self.head is not None:
            norms += self.head.cross_terms(self.ids, self.b, self.segments)
        return norms

    def gradients(self) -> tuple[Gradients, Tensor]:
        shape = self.module.get_parameter("weight").shape
        gradient = torch.zeros(shape, device=self.b.device).index_add_(0, self.ids, self.b.float())
        return {"weight": gradient}, self.square_norms(contractions.linear_square_norms)
