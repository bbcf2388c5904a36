"""Gradients per segment from what backpropagation already holds, and their squared norms without the gradients.

A linear layer's weight gradient for one segment is a contraction over the segment's tokens of the layer's input ``A``
and the gradient of its output ``B``. Its norm needs no such gradient to be formed: see Goodfellow 2015
(arXiv 1510.01799) and, for sequences, Li et al. 2022 (arXiv 2110.05679). Tokens are flat, [n, d]; all sums are in
float32 whatever the inputs, because nearly cancelling gradients lose everything in bfloat16.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from oblr.kernels import on_gpu
from oblr.packing import Segments

T = TypeVar("T")
#: Rows of a Gram matrix that are computed at once; of the symmetric matrix only what lies right of them is needed.
GRAM_ROWS = 64


class LinearNorms(Protocol):
    """``‖Σ_t b_t a_tᵀ‖²`` per segment, float32 [S], exact or estimated, from ``a`` [n, d_in] and ``b`` [n, d_out]."""

    def __call__(self, a: Tensor, b: Tensor, segments: Segments) -> Tensor: ...


class OfLastInput(Generic[T]):
    """A function of a layer's input that is found once for all layers that read it: q, k, v; gate, up.

    One result is remembered, for such layers follow each other in a backward pass.
    """

    def __init__(self, function: Callable[[Tensor, Segments], T]):
        self.function, self.a = function, torch.empty(0)

    def __call__(self, a: Tensor, segments: Segments) -> T:
        if (self.a.data_ptr(), self.a.shape, self.a.stride()) != (a.data_ptr(), a.shape, a.stride()):
            self.value, self.a = self.function(a, segments), a
        return self.value


class ExactNorms:
    """Gram form ``⟨AAᵀ, BBᵀ⟩``, or direct form ``‖BᵀA‖²``, whichever is cheaper; Gram matrices ``rows`` at a time."""

    def __init__(self, rows: int = GRAM_ROWS) -> None:
        self.rows = rows
        self.gram = OfLastInput(lambda a, segments: [gram_rows(x, rows) for x in segments.gather(a)])

    def __call__(self, a: Tensor, b: Tensor, segments: Segments) -> Tensor:
        d_in, d_out = a.shape[1], b.shape[1]
        entries = sum(index.numel() * index.shape[1] for _, index in segments.buckets)  # half of them are computed
        if entries * (d_in + d_out) / 2 > len(a) * d_in * d_out:
            return torch.stack([square_norm(linear_gradient(a, b, span)) for span in segments.spans])
        norms = torch.zeros(segments.count, device=b.device)
        padded = segments.gather(b, fill=False)  # where A's rows are zero, B's do not matter
        for (members, _), rows_a, x in zip(segments.buckets, self.gram(a, segments), padded, strict=True):
            for part_a, part_b in zip(rows_a, gram_rows(x, self.rows), strict=True):
                products = part_a * part_b
                norms[members] += 2 * products.sum((1, 2)) - products[:, :, : products.shape[1]].sum((1, 2))
        return norms


class SketchNorms:
    """Unbiased estimate ``(1/k) Σ_z ‖Bᵀ(Az)‖²`` with random signs ``z``, at a cost of n·k·(d_in + d_out).

    Its relative variance is 2/k over the effective rank of the gradient, whichever side is projected; the input is,
    because layers share it. Projecting both sides would cost the same and vary more.

    Args:
        probes: k.
        generator: of the signs, on the CPU, so that they are the same on every device.
    """

    def __init__(self, probes: int, generator: torch.Generator):
        def project(a: Tensor, segments: Segments) -> list[Tensor]:
            signs = torch.randint(2, (a.shape[1], probes), generator=generator) * 2.0 - 1
            return [x.mT for x in segments.gather(product(a, signs.to(a)))]

        self.probes, self.projected = probes, OfLastInput(project)

    def __call__(self, a: Tensor, b: Tensor, segments: Segments) -> Tensor:
        norms = torch.zeros(segments.count, device=b.device)
        padded = segments.gather(b, fill=False)
        for (members, _), projected, x in zip(segments.buckets, self.projected(a, segments), padded, strict=True):
            norms[members] = (projected @ x.float()).square().sum((1, 2)) / self.probes
        return norms


def product(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product [..., m, k] × [..., k, n] in float32, whatever the inputs."""
    if on_gpu(x) and x.dtype != torch.float32:  # on tensor cores: low-precision factors, float32 sums
        return torch.bmm(x, y, out_dtype=torch.float32) if x.ndim == 3 else torch.mm(x, y, out_dtype=torch.float32)
    return x.float() @ y.float()


def square_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x).square()


def gram_rows(x: Tensor, rows: int) -> list[Tensor]:
    """The upper triangle of ``XXᵀ`` of each [S, T, d]: from row s on, [S, rows, T − s] each."""
    return [product(x[:, s : s + rows], x[:, s:].mT) for s in range(0, x.shape[1], rows)]


def linear_gradient(a: Tensor, b: Tensor, span: slice | Tensor) -> Tensor:
    """Weight gradient ``Σ_t b_t a_tᵀ`` of one segment, float32 [d_out, d_in]."""
    return product(tokens(b, span).mT, tokens(a, span))


def tokens(x: Tensor, span: slice | Tensor) -> Tensor:
    """Rows of ``x``; ``index_select`` copies them several times faster than indexing."""
    return x[span] if isinstance(span, slice) else x.index_select(0, span)


def grouped_gradient(a: Tensor, b: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Weight gradient of all segments [d_out, d_in] and its squared norm per segment [S].

    Forms one segment's gradient at a time, so the product costs what the plain weight gradient costs.
    """
    total, norms = None, []
    for span in segments.spans:
        gradient = linear_gradient(a, b, span)
        norms.append(square_norm(gradient))
        total = gradient if total is None else total.add_(gradient)
    assert total is not None
    return total, torch.stack(norms)
