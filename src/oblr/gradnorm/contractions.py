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

from oblr.kernels import on_gpu, upload
from oblr.segments import Segments

T = TypeVar("T")
#: Rows of a Gram matrix that are computed at once; of the symmetric matrix only what lies right of them is needed. On a
#: GPU a launch costs as much as some hundred rows.
GRAM_ROWS, GPU_GRAM_ROWS = 64, 512
#: Numbers whose squares a CPU does not add up in one float32 sum.
MANY = 2**16


class LinearNorms(Protocol):
    """``‖Σ_t b_t a_tᵀ‖²`` per segment, float32 [S], exact or estimated, from ``a`` [n, d_in] and ``b`` [n, d_out]."""

    def __call__(self, a: Tensor, b: Tensor, segments: Segments) -> Tensor: ...


def same(x: Tensor, y: Tensor) -> bool:
    """Whether both look at the same numbers."""
    if x.untyped_storage()._cdata != y.untyped_storage()._cdata:
        return False
    return (x.storage_offset(), x.shape, x.stride()) == (y.storage_offset(), y.shape, y.stride())


class OfLastInput(Generic[T]):
    """A function of a layer's input that is found once for all layers that read it: q, k, v; gate, up.

    One result is remembered, for such layers follow each other in a backward pass.
    """

    def __init__(self, function: Callable[[Tensor, Segments], T]):
        self.function, self.a = function, torch.empty(0)

    def __call__(self, a: Tensor, segments: Segments) -> T:
        if not same(self.a, a):
            self.value, self.a = self.function(a, segments), a
        return self.value


class ExactNorms:
    """Gram form ``⟨AAᵀ, BBᵀ⟩``, or direct form ``‖BᵀA‖²``, whichever is cheaper; Gram matrices ``rows`` at a time."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows = rows
        self.gram = OfLastInput(lambda a, segments: [doubled(gram_rows(x, rows)) for x in segments.gather(a)])

    def __call__(self, a: Tensor, b: Tensor, segments: Segments) -> Tensor:
        d_in, d_out = a.shape[1], b.shape[1]
        entries = sum(bucket.rows.numel() * bucket.rows.shape[1] for bucket in segments.buckets)  # half are computed
        if entries * (d_in + d_out) / 2 > len(a) * d_in * d_out:
            return torch.stack([norm(linear_gradient(a, b, span)) for span in segments.spans]).square()
        padded = segments.gather(b, fill=False)  # where A's rows are zero, B's do not matter
        return segments.ungather(
            [inner(gram, gram_rows(x, self.rows)) for gram, x in zip(self.gram(a, segments), padded, strict=True)]
        )


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
            signs = torch.randint(2, (a.shape[1], probes), generator=generator, dtype=torch.int8) * 2 - 1
            projected = product(a, upload(signs, a.device).to(a.dtype)) / probes**0.5
            return [x.mT for x in segments.gather(projected.to(a.dtype) if on_gpu(a) else projected)]

        self.projected = OfLastInput(project)

    def __call__(self, a: Tensor, b: Tensor, segments: Segments) -> Tensor:
        norms, padded = [], segments.gather(b, fill=False)
        for projected, x in zip(self.projected(a, segments), padded, strict=True):
            norms.append(square_norms(product(projected, x)))
        return segments.ungather(norms)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product [..., m, k] × [..., k, n] in float32, whatever the inputs."""
    real = type(x) is Tensor and not x.is_cuda  # small tensors of a dry run have numbers, on a CPU
    if on_gpu(x) and x.dtype != torch.float32 and not real:  # on tensor cores: low-precision factors, float32 sums
        return torch.bmm(x, y, out_dtype=torch.float32) if x.ndim == 3 else torch.mm(x, y, out_dtype=torch.float32)
    return x.float() @ y.float()


def norm(x: Tensor) -> Tensor:
    """``‖x‖`` [], summed in float32 where ``x`` is less precise."""
    return torch.linalg.vector_norm(_by_rows(x), dtype=torch.promote_types(x.dtype, torch.float32))


def _by_rows(x: Tensor) -> Tensor:
    """A tensor with the norm of ``x``; on a CPU, which sums one by one and is 1e-3 off after millions, of its rows."""
    if on_gpu(x) or x.ndim < 2 or x.numel() < MANY:
        return x
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))


def square_norm(x: Tensor) -> Tensor:
    """``‖x‖²`` [], likewise."""
    return norm(x).square()


def square_norms(x: Tensor) -> Tensor:
    """``‖x_s‖²`` of each of float32 ``x`` [S, …]: [S]; in one launch."""
    x = x.flatten(1)
    return torch.bmm(x[:, None], x[:, :, None]).flatten()


def gram_rows(x: Tensor, rows: int | None = None) -> list[Tensor]:
    """The upper triangle of ``XXᵀ`` of each [k, T, d]: from row s on, [k, rows, T − s] each."""
    rows = rows or (GPU_GRAM_ROWS if on_gpu(x) else GRAM_ROWS)
    return [product(x[:, s : s + rows], x[:, s:].mT) for s in range(0, x.shape[1], rows)]


def doubled(gram: list[Tensor]) -> list[Tensor]:
    """What :func:`gram_rows` gave, with what lies right of the diagonal's blocks counted for the lower triangle too."""
    for part in gram:
        if part.shape[2] > part.shape[1]:
            part[:, :, part.shape[1] :] *= 2
    return gram


def inner(doubled: list[Tensor], gram: list[Tensor]) -> Tensor:
    """``⟨AAᵀ, BBᵀ⟩`` of each segment, float32 [k]; uses ``gram`` up."""
    products = [part.mul_(twice).sum((1, 2)) for twice, part in zip(doubled, gram, strict=True)]
    return torch.stack(products).sum(0) if len(products) > 1 else products[0]


def linear_gradient(a: Tensor, b: Tensor, span: slice | Tensor, out: Tensor | None = None) -> Tensor:
    """Weight gradient ``Σ_t b_t a_tᵀ`` of one segment [d_out, d_in], summed in float32.

    On a GPU it has its factors' precision, as autograd's has: that halves what is written, read and added up.

    Args:
        out: on a CPU, where it may be written and is returned; None: into memory of its own.
    """
    b, a = tokens(b, span), tokens(a, span)
    return b.mT @ a if on_gpu(a) else torch.mm(b.mT.float(), a.float(), out=out)


def tokens(x: Tensor, span: slice | Tensor) -> Tensor:
    """Rows of ``x``; ``index_select`` copies them several times faster than indexing."""
    return x[span] if isinstance(span, slice) else x.index_select(0, span)


def grouped_gradient(a: Tensor, b: Tensor, segments: Segments, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight gradient of all segments, float32 [d_out, d_in], and its squared norm per segment [S].

    Forms one segment's gradient at a time, so the product costs what the plain weight gradient costs; all in the same
    memory, as a CPU is slow with new one.

    Args:
        into: what the gradient is added to and returned in; None: a tensor of its own.
    """
    norms, gradient = torch.empty(segments.count, device=a.device), None
    for own, span in zip(norms, segments.spans, strict=True):
        gradient = linear_gradient(a, b, span, out=gradient)
        torch.linalg.vector_norm(_by_rows(gradient), dtype=norms.dtype, out=own)
        if into is None:
            into, gradient = gradient.float(), None
        else:
            into.add_(gradient)
    assert into is not None
    return into, norms.square_()
