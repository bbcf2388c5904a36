"""Gradients per segment from what backpropagation already holds, and their squared norms without the gradients.

A linear layer's weight gradient for one segment is a contraction over the segment's tokens of the layer's input ``A``
and the gradient of its output ``B``. Its norm needs no such gradient to be formed: see Goodfellow 2015
(arXiv 1510.01799) and, for sequences, Li et al. 2022 (arXiv 2110.05679). Tokens are flat, [n, d]; all sums are in
float32 whatever the inputs, because nearly cancelling gradients lose everything in bfloat16.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oblr import kernels
from oblr.batch.segments import Segments, cut

T = TypeVar("T")
#: Most rows of a Gram matrix that are not halved; of the symmetric matrix half is needed. On a GPU smaller blocks are
#: bound by memory, not by operations.
GRAM_ROWS, GPU_GRAM_ROWS = 64, 512
#: Gradients that a GPU makes at once, and adds up before they are added to those of earlier micro-batches.
TOGETHER = 4
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
    """Gram form ``⟨AAᵀ, BBᵀ⟩``, or direct form ``‖BᵀA‖²``, whichever is cheaper.

    Args:
        rows: of a Gram matrix that are not halved, see :func:`gram`.
    """

    def __init__(self, rows: int | None = None) -> None:
        self.rows = rows
        self.gram = OfLastInput(lambda a, segments: [gram(x, rows) for x in segments.gather(a)])
        self.shares: dict[tuple[int, Halving], Tensor] = {}

    def __call__(self, a: Tensor, b: Tensor, segments: Segments) -> Tensor:
        d_in, d_out = a.shape[1], b.shape[1]
        entries = sum(bucket.rows.numel() * bucket.rows.shape[1] for bucket in segments.buckets)  # half are computed
        if entries * (d_in + d_out) / 2 > len(a) * d_in * d_out:
            if kernels.on_gpu(a):
                return torch.cat([norms(parts) for parts in gradients(a, b, segments)]).square_()
            return torch.stack([norm(linear_gradient(a, b, span)) for span in segments.spans]).square()
        padded = segments.gather(b, fill=False)  # where A's rows are zero, B's do not matter
        return segments.ungather(
            [self.inner(of_a, x) for of_a, x in zip(self.gram(a, segments), padded, strict=True)],
        )

    def inner(self, of_a: Tensor, x: Tensor) -> Tensor:
        """``⟨AAᵀ, BBᵀ⟩`` of each segment, float32 [k], of what :func:`gram` gave for A, and of B [k, T, d]."""
        halving = Halving.of(x, self.rows)
        if (len(x), halving) not in self.shares:
            self.shares[len(x), halving] = kernels.upload(halving.shares(len(x)), x.device)
        products = dots(gram(x, self.rows).view(-1, halving.run), of_a.view(-1, halving.run))
        return self.shares[len(x), halving] @ products


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
            words = torch.empty(a.shape[1], -(-probes // BITS), dtype=torch.int32).random_(generator=generator)
            signs = signs_of(kernels.upload(words, a.device))[:, :probes].to(a.dtype)
            return [x.mT for x in segments.gather(a @ signs if kernels.on_gpu(a) else product(a, signs))]

        self.probes, self.projected = probes, OfLastInput(project)

    def __call__(self, a: Tensor, b: Tensor, segments: Segments) -> Tensor:
        padded = segments.gather(b, fill=False)
        found = [square_norms(product(p, x)) for p, x in zip(self.projected(a, segments), padded, strict=True)]
        return segments.ungather(found) / self.probes


#: Fair ones of an int32 that is drawn at random; a draw a sign would take the host longer than all products take a GPU.
BITS = 31


def signs_of(words: Tensor) -> Tensor:
    """±1 [n, w·31] of the bits of ``words`` [n, w], which are not negative."""
    bits = (words[:, :, None] >> torch.arange(BITS, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(1) * 2 - 1


def product(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """Matrix product [..., m, k] × [..., k, n] in float32, whatever the inputs; written to ``out`` if given."""
    multiply = torch.bmm if x.ndim == 3 else torch.mm
    if kernels.on_tensor_cores(x):
        return multiply(x, y, out_dtype=torch.float32, out=out)
    return multiply(x.float(), y.float(), out=out)


def norm(x: Tensor) -> Tensor:
    """``‖x‖`` [], summed in float32 where ``x`` is less precise."""
    return torch.linalg.vector_norm(_by_rows(x), dtype=torch.promote_types(x.dtype, torch.float32))


def _by_rows(x: Tensor) -> Tensor:
    """A tensor with the norm of ``x``; on a CPU, which sums one by one and is 1e-3 off after millions, of its rows."""
    if kernels.on_gpu(x) or x.ndim < 2 or x.numel() < MANY:
        return x
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))


def square_norm(x: Tensor) -> Tensor:
    """``‖x‖²`` [], likewise."""
    return norm(x).square()


def square_norms(x: Tensor) -> Tensor:
    """``‖x_s‖²`` of each of float32 ``x`` [S, …]: [S]."""
    x = x.flatten(1)
    if kernels.on_gpu(x) and x.shape[1] > MANY:  # a dot product is one block's work there
        return norms(x).square_()
    return dots(x, x)


def norms(x: Tensor) -> Tensor:
    """``‖x_s‖`` of each of ``x`` [S, …]: float32 [S]; on a GPU, which adds up in parts."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float32)


def dots(x: Tensor, y: Tensor) -> Tensor:
    """``⟨x_r, y_r⟩`` of each row of float32 ``x`` and ``y`` [R, n]: [R]; in one launch, and without their product."""
    return torch.bmm(x[:, None], y[:, :, None]).flatten()


@dataclass(frozen=True)
class Halving:
    """How the Gram matrix of ``T`` tokens is divided: the product of its halves, of theirs, …, and the diagonal.

    Attributes:
        times: how often it is halved.
        rows: of each block on the diagonal; ``T`` is ``rows · 2^times``.
    """

    times: int
    rows: int

    @classmethod
    def of(cls, x: Tensor, most: int | None) -> "Halving":
        """For tokens [k, T, d], filled up to a multiple; at ``most`` so many rows, or the device's."""
        length, most = x.shape[1], most or (GPU_GRAM_ROWS if kernels.on_gpu(x) else GRAM_ROWS)
        times = max(0, math.ceil(math.log2(length / most))) if length else 0
        return cls(times, max(1, -(-length // 2**times)))

    def blocks(self, k: int) -> list[tuple[int, int]]:
        """Number and rows of the square blocks of ``k`` segments, the largest ones first, the diagonal's last."""
        halves = [(k << level, self.rows << (self.times - level - 1)) for level in range(self.times)]
        return [*halves, (k << self.times, self.rows)]

    @property
    def run(self) -> int:
        """A number of entries that divides those of every segment in each part: small blocks, or a few rows."""
        return self.rows * (self.rows if self.rows <= GRAM_ROWS else math.gcd(self.rows, 16))

    def shares(self, k: int) -> Tensor:
        """What runs of entries count for ``k`` segments, [k, runs], on the CPU: twice if not of the diagonal."""
        runs = [n * rows * rows // (k * self.run) for n, rows in self.blocks(k)]
        factors = [2.0] * self.times + [1.0]
        return torch.cat([torch.eye(k).repeat_interleave(n, 1) * f for n, f in zip(runs, factors, strict=True)], 1)


def gram(x: Tensor, rows: int | None = None) -> Tensor:
    """The different entries of ``XXᵀ`` of each [k, T, d], flat, float32, in the order of :meth:`Halving.blocks`."""
    halving, (k, length, d) = Halving.of(x, rows), x.shape
    x = F.pad(x, (0, 0, 0, missing)) if (missing := (halving.rows << halving.times) - length) else x
    blocks = halving.blocks(k)
    entries = torch.empty(sum(n * rows * rows for n, rows in blocks), device=x.device)
    parts = entries.split([n * rows * rows for n, rows in blocks])
    for level, ((n, size), part) in enumerate(zip(blocks, parts, strict=True)):
        if level < halving.times:
            left, right = x.reshape(n, 2, size, d).unbind(1)
        else:
            left = right = x.reshape(n, size, d)
        product(left, right.mT, out=part.view(n, size, size))
    return entries


def linear_gradient(a: Tensor, b: Tensor, span: slice | Tensor, out: Tensor | None = None) -> Tensor:
    """Weight gradient ``Σ_t b_t a_tᵀ`` of one segment, float32 [d_out, d_in].

    Args:
        out: where it may be written and is returned; None: into memory of its own.
    """
    return torch.mm(tokens(b, span).mT.float(), tokens(a, span).float(), out=out)


def tokens(x: Tensor, span: slice | Tensor) -> Tensor:
    """Rows of ``x``; ``index_select`` copies them several times faster than indexing."""
    return x[span] if isinstance(span, slice) else x.index_select(0, span)


def gradients(a: Tensor, b: Tensor, segments: Segments) -> Iterator[Tensor]:
    """Weight gradients of segments, some of them at once, [k, d_out, d_in] each, as a GPU makes them.

    They have the factors' precision, as autograd's have: that halves what is written, read and added up.
    """
    d_out, d_in = b.shape[1], a.shape[1]
    for chosen in cut(range(segments.count), -(-segments.count // TOGETHER)):
        first, last = chosen[0], chosen[-1] + 1
        if segments.regular:
            left, right = (x.unflatten(0, segments.rows.shape)[first:last] for x in (b, a))
            yield torch.bmm(left.mT, right)
            continue
        parts = torch.empty(len(chosen), d_out, d_in, dtype=a.dtype, device=a.device)
        for part, span in zip(parts, segments.spans[first:last], strict=True):
            torch.mm(tokens(b, span).mT, tokens(a, span), out=part)
        yield parts


def grouped_gradient(a: Tensor, b: Tensor, segments: Segments, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight gradient of all segments, float32 [d_out, d_in], and its squared norm per segment [S].

    Forms the segments' own, so the product costs what the plain weight gradient costs; a CPU one at a time in the same
    memory, as it is slow with new one; a GPU some at once, in the factors' precision, and adds them up first.

    Args:
        into: what the gradient is added to and returned in; None: a tensor of its own.
    """
    if kernels.on_gpu(a):
        found = []
        for parts in gradients(a, b, segments):
            found.append(norms(parts))
            total = parts.sum(0) if len(parts) > 1 else parts[0]
            into = total.float() if into is None else into.add_(total)
        assert into is not None
        return into, (torch.cat(found) if len(found) > 1 else found[0]).square_()
    each, gradient = torch.empty(segments.count, device=a.device), None
    for own, span in zip(each, segments.spans, strict=True):
        gradient = linear_gradient(a, b, span, out=gradient)
        torch.linalg.vector_norm(_by_rows(gradient), dtype=each.dtype, out=own)
        if into is None:
            into, gradient = gradient.float(), None
        else:
            into.add_(gradient)
    assert into is not None
    return into, each.square_()
