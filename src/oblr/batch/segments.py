"""Which token belongs to which sequence, or to which group of sequences, and sums over each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oblr import kernels

T = TypeVar("T")
#: Sets of segments of similar length that are filled up to one length. On a GPU filling up costs less than launches.
BUCKETS, GPU_BUCKETS = 8, 2
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Segments:
    """Which segment each of ``n`` tokens belongs to. Segments are sequences, or groups of sequences.

    The host knows all of it, so that nothing that is done by segments waits for the device.

    Attributes:
        host: int64 [n], on the CPU; −1 for tokens that belong to none.
        count: number of segments S.
        device: where the tokens are.
    """

    host: Tensor
    count: int
    device: torch.device = CPU

    @cached_property
    def ids(self) -> Tensor:
        """:attr:`host` on the device."""
        return kernels.upload(self.host, self.device)

    @cached_property
    def sizes(self) -> list[int]:
        """Tokens of each segment."""
        return torch.bincount(self.host + 1, minlength=self.count + 1)[1:].tolist()

    @cached_property
    def lengths(self) -> Tensor:
        """:attr:`sizes` on the device, int64 [S]."""
        return kernels.upload(torch.tensor(self.sizes), self.device)

    @cached_property
    def rows(self) -> Tensor:
        """int64 [S, T], on the CPU; token positions of each segment in order, filled up with ``n``; T: the longest."""
        lengths = torch.tensor(self.sizes)
        order = torch.argsort(self.host, stable=True)[len(self.host) - sum(self.sizes) :]
        starts = lengths.cumsum(0) - lengths
        column = torch.arange(max(self.sizes))
        taken = (starts[:, None] + column).clamp(max=max(len(order) - 1, 0))
        return torch.where(column < lengths[:, None], order[taken], len(self.host))

    @cached_property
    def spans(self) -> list[slice | Tensor]:
        """Where each segment's tokens are: a slice where they lie next to each other, sparing a copy, or indices."""
        spans: list[slice | Tensor] = []
        for row, size in zip(self.rows, self.sizes, strict=True):
            first, last = (int(row[0]), int(row[size - 1])) if size else (0, -1)
            adjacent = last - first + 1 == size
            spans.append(slice(first, last + 1) if adjacent else kernels.upload(row[:size], self.device))
        return spans

    @cached_property
    def regular(self) -> bool:
        """Whether the tokens are the segments one after the other, all of one length."""
        return torch.equal(self.rows.flatten(), torch.arange(len(self.host)))

    @cached_property
    def buckets(self) -> list["Bucket"]:
        """Segments of similar length."""
        if self.regular:
            return [Bucket(list(range(self.count)), self.rows)]
        order = sorted(range(self.count), key=lambda s: -self.sizes[s])
        most = GPU_BUCKETS if kernels.on_gpu(self.ids) else BUCKETS
        parts = cut(order, min(most, self.count))
        return [Bucket(part, self._filled_up(self.rows[part, : self.sizes[part[0]]])) for part in parts]

    def _filled_up(self, rows: Tensor) -> Tensor:
        """To a length that can be halved again and again, see :func:`oblr.gradnorm.contractions.gram`; by 3 %."""
        step = 1 << max(0, rows.shape[1].bit_length() - 6)
        return F.pad(rows, (0, -rows.shape[1] % step), value=len(self.host))

    @cached_property
    def order(self) -> Tensor:
        """int64; the tokens of all buckets, one after the other; anything where a segment is filled up."""
        places = torch.cat([bucket.rows.flatten() for bucket in self.buckets])
        return kernels.upload(places.clamp(max=len(self.host) - 1), self.device)

    @cached_property
    def filled(self) -> list[Tensor]:
        """bool [k, T] for each bucket; whether there is a token."""
        return [kernels.upload(bucket.rows < len(self.host), self.device) for bucket in self.buckets]

    @cached_property
    def places(self) -> Tensor:
        """int64 [S]; where a segment stands when the buckets' are put one after the other."""
        members = torch.tensor([s for bucket in self.buckets for s in bucket.members])
        return kernels.upload(members.argsort(), self.device)

    def gather(self, x: Tensor, fill: bool = True) -> list[Tensor]:
        """Token rows ``x`` [n, d] regrouped bucket by bucket, [k, T, d] each.

        Rows beyond a segment's end are zeros, or where ``fill`` is False, which is cheaper, those of some other token.
        """
        if self.regular:
            return [x.unflatten(0, self.rows.shape)]
        parts = x.index_select(0, self.order).split([bucket.rows.numel() for bucket in self.buckets])
        padded = [part.unflatten(0, bucket.rows.shape) for part, bucket in zip(parts, self.buckets, strict=True)]
        if not fill:
            return padded
        return [part * kept[..., None] for part, kept in zip(padded, self.filled, strict=True)]

    def ungather(self, parts: Sequence[Tensor]) -> Tensor:
        """What was found for each bucket's segments, [k, …] each, for all segments in order, [S, …]."""
        return parts[0] if self.regular else torch.cat(list(parts)).index_select(0, self.places)

    @cached_property
    def members(self) -> Tensor:
        """float32 [S, n]; 1 where a token belongs to a segment."""
        return kernels.upload((self.host == torch.arange(self.count)[:, None]).float(), self.device)

    def sum(self, x: Tensor) -> Tensor:
        """Sum token rows ``x`` [n, …] over each segment: [S, …]."""
        if x.ndim == 2:  # a matrix product, which is far faster than adding row by row
            return self.members.to(x.dtype) @ x
        rows = kernels.upload(
            torch.where(self.host < 0, self.count, self.host), self.device
        )  # one more, for those of none
        return x.new_zeros(self.count + 1, *x.shape[1:]).index_add_(0, rows, x)[: self.count]

    def merge(self, size: int) -> "Segments":
        """The same tokens under coarser segments, each of ``size`` consecutive ones."""
        return Segments(self.host.div(size, rounding_mode="floor"), self.count // size, self.device)

    def to(self, device: torch.device) -> "Segments":
        return Segments(self.host, self.count, device)


@dataclass(frozen=True)
class Bucket:
    """Some segments: their numbers, and their :attr:`Segments.rows` [k, T], cut to the longest."""

    members: Sequence[int]
    rows: Tensor


@dataclass(frozen=True)
class DistinctTokens:
    """The tokens that each segment has, each of them once.

    Attributes:
        ids: int64 [U]; the tokens.
        segments: of the U.
        places: int64 [n]; which of the U each of the n tokens is, U for those of no segment.
    """

    ids: Tensor
    segments: Segments
    places: Tensor


def distinct_tokens(token_ids: Tensor, segments: Segments) -> DistinctTokens:
    """Of ``token_ids`` [n], on the CPU."""
    kept = segments.host >= 0
    vocabulary = int(token_ids.max()) + 1
    keys, found = torch.unique(segments.host[kept] * vocabulary + token_ids[kept], return_inverse=True)
    places = torch.full_like(token_ids, len(keys)).masked_scatter(kept, found)
    return DistinctTokens(
        kernels.upload(keys % vocabulary, segments.device),
        Segments(keys // vocabulary, segments.count, segments.device),
        kernels.upload(places, segments.device),
    )


def cut(items: Sequence[T], n_parts: int) -> list[Sequence[T]]:
    """Consecutive parts of equal number, give or take one."""
    bounds = [len(items) * k // n_parts for k in range(n_parts + 1)]
    return [items[start:end] for start, end in pairwise(bounds)]
