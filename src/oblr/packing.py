"""Lay sequences out in rows for one forward pass, and remember which token belongs to which sequence."""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from oblr.kernels import on_gpu, upload
from oblr.types import Rollout

T = TypeVar("T")
#: Largest share of padding in a packed batch.
PADDING = 0.02
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
        return upload(self.host, self.device)

    @cached_property
    def sizes(self) -> list[int]:
        """Tokens of each segment."""
        return torch.bincount(self.host + 1, minlength=self.count + 1)[1:].tolist()

    @cached_property
    def lengths(self) -> Tensor:
        """:attr:`sizes` on the device, int64 [S]."""
        return upload(torch.tensor(self.sizes), self.device)

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
            spans.append(slice(first, last + 1) if adjacent else upload(row[:size], self.device))
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
        most = GPU_BUCKETS if on_gpu(self.ids) else BUCKETS
        parts = cut(order, min(most, self.count))
        return [Bucket(part, self.rows[part, : self.sizes[part[0]]]) for part in parts]

    @cached_property
    def order(self) -> Tensor:
        """int64; the tokens of all buckets, one after the other; anything where a segment is filled up."""
        places = torch.cat([bucket.rows.flatten() for bucket in self.buckets])
        return upload(places.clamp(max=len(self.host) - 1), self.device)

    @cached_property
    def filled(self) -> list[Tensor]:
        """bool [k, T] for each bucket; whether there is a token."""
        return [upload(bucket.rows < len(self.host), self.device) for bucket in self.buckets]

    @cached_property
    def places(self) -> Tensor:
        """int64 [S]; where a segment stands when the buckets' are put one after the other."""
        members = torch.tensor([s for bucket in self.buckets for s in bucket.members])
        return upload(members.argsort(), self.device)

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
        return upload((self.host == torch.arange(self.count)[:, None]).float(), self.device)

    def sum(self, x: Tensor) -> Tensor:
        """Sum token rows ``x`` [n, …] over each segment: [S, …]."""
        if x.ndim == 2:  # a matrix product, which is far faster than adding row by row
            return self.members.to(x.dtype) @ x
        rows = upload(torch.where(self.host < 0, self.count, self.host), self.device)  # one more, for those of none
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
        upload(keys % vocabulary, segments.device),
        Segments(keys // vocabulary, segments.count, segments.device),
        upload(places, segments.device),
    )


@dataclass(frozen=True)
class PackedBatch:
    """Sequences laid end to end in rows [R, L]; ``position_ids`` restart with each, so attention never crosses them.

    Attributes:
        token_ids: int64 [R·L], on the CPU wherever the batch is.
        input_ids, position_ids: int64 [R, L].
        segments: sequence of each of the R·L tokens, prompts included.
        predictors: int64 [n]; flat positions whose output predicts a response token.
        targets: int64 [n]; those response tokens.
        target_segments: sequence of each target.
        behaviour_logprobs: float32 [n]; the engine's log-probabilities of the targets.
    """

    token_ids: Tensor
    input_ids: Tensor
    position_ids: Tensor
    segments: Segments
    predictors: Tensor
    targets: Tensor
    target_segments: Segments
    behaviour_logprobs: Tensor

    @cached_property
    def order(self) -> Tensor:
        """int64 [n]; puts the targets in the order of their sequences: rows hold them in any."""
        return upload(self.target_segments.host.argsort(stable=True), self.targets.device)

    @cached_property
    def owners(self) -> Tensor:
        """int64 [n]; sequence of each target, in :attr:`order`."""
        return upload(self.target_segments.host.sort(stable=True).values, self.targets.device)

    @cached_property
    def bounds(self) -> Tensor:
        """int32; where sequences, and the padding of each row, begin among the R·L tokens, and their end."""
        return upload(self._bounds, self.targets.device)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest of what lies between two :attr:`bounds`."""
        return int(self._bounds.diff().max())

    @cached_property
    def _bounds(self) -> Tensor:
        rows = self.segments.host.view(self.input_ids.shape)
        begins = torch.ones(rows.shape, dtype=torch.bool)
        begins[:, 1:] = rows[:, 1:] != rows[:, :-1]
        return torch.cat([begins.flatten().nonzero().squeeze(1), torch.tensor([rows.numel()])]).int()

    def to(self, device: torch.device) -> "PackedBatch":
        return PackedBatch(
            self.token_ids,
            upload(self.input_ids, device),
            upload(self.position_ids, device),
            self.segments.to(device),
            upload(self.predictors, device),
            upload(self.targets, device),
            self.target_segments.to(device),
            upload(self.behaviour_logprobs, device),
        )


def pack(rollouts: Sequence[Rollout]) -> PackedBatch:
    """Share sequences out between rows so that at most :data:`PADDING` of the tokens are padding."""
    sizes = [r.n_tokens for r in rollouts]
    n_rows = max(1, sum(sizes) // max(sizes))
    while True:
        rows = fill_rows(sizes, n_rows)
        row_length = max(sum(sizes[i] for i in row) for row in rows)
        if n_rows == 1 or n_rows * row_length * (1 - PADDING) <= sum(sizes):
            break
        n_rows = n_rows * 19 // 20  # longer rows fill more evenly, but attention costs more in them

    input_ids = torch.zeros(len(rows), row_length, dtype=torch.long)
    # Positions of the padding run on from the row's last sequence: nothing reads it, and it needs no mask of its own.
    position_ids = torch.arange(row_length).repeat(len(rows), 1)
    segment_ids = torch.full((len(rows), row_length), -1)
    predictors, targets, owners, behaviour = [], [], [], []
    for row, members in enumerate(rows):
        start = 0
        for i in members:
            prompt, completion = rollouts[i].prompt_ids, rollouts[i].completion
            end = start + rollouts[i].n_tokens
            input_ids[row, start:end] = torch.tensor(prompt + completion.token_ids)
            position_ids[row, start:] = torch.arange(row_length - start)
            segment_ids[row, start:end] = i
            first = row * row_length + start + len(prompt) - 1
            predictors.append(torch.arange(first, first + len(completion.token_ids)))
            targets += completion.token_ids
            owners += [i] * len(completion.token_ids)
            behaviour += completion.logprobs
            start = end
    return PackedBatch(
        input_ids.flatten(),
        input_ids,
        position_ids,
        Segments(segment_ids.flatten(), len(rollouts)),
        torch.cat(predictors),
        torch.tensor(targets),
        Segments(torch.tensor(owners), len(rollouts)),
        torch.tensor(behaviour),
    )


def fill_rows(sizes: Sequence[int], n_rows: int) -> list[list[int]]:
    """Share sequences out between rows, the longest as short as MULTIFIT finds (Coffman, Garey and Johnson 1978)."""
    low, high = max(*sizes, -(-sum(sizes) // n_rows)), sum(sizes)
    rows = best_fit(sizes, n_rows, high)
    while low < high:
        room = (low + high) // 2
        found = best_fit(sizes, n_rows, room)
        if found:
            rows, high = found, room
        else:
            low = room + 1
    return rows


def best_fit(sizes: Sequence[int], n_rows: int, room: int) -> list[list[int]]:
    """Largest first, each into the fullest row of at most ``n_rows`` that still has room; empty if one fits nowhere."""
    rows: list[list[int]] = [[] for _ in range(n_rows)]
    free = [(room, k) for k in range(n_rows)]  # sorted
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        place = bisect_left(free, (sizes[i], 0))
        if place == n_rows:
            return []
        left, k = free.pop(place)
        rows[k].append(i)
        insort(free, (left - sizes[i], k))
    return rows


def cut(items: Sequence[T], n_parts: int) -> list[Sequence[T]]:
    """Consecutive parts of equal number, give or take one."""
    bounds = [len(items) * k // n_parts for k in range(n_parts + 1)]
    return [items[start:end] for start, end in pairwise(bounds)]


def parts_needed(sizes: Sequence[int], budget: int) -> int:
    """Fewest parts that a group of sequences of these sizes must be cut into; each holds at least one sequence."""
    for n_parts in range(1, len(sizes)):
        if max(sum(part) for part in cut(sizes, n_parts)) <= budget:
            return n_parts
    return len(sizes)


def plan(
    sizes: Sequence[Sequence[int]], live: Sequence[bool], budget: int, agree: Callable[[list[int]], list[int]]
) -> list[tuple[list[int], int]]:
    """Share the live groups out between forward passes of at most ``budget`` tokens.

    Every rank gets the same number of passes, because collectives run inside each. A rank that has fewer live groups
    fills up with dead ones, whose advantages are zero, or has fewer groups a pass.

    Args:
        sizes: tokens of each sequence of each group.
        live: which groups have advantages.
        agree: the elementwise maximum of some counts over all ranks.

    Returns:
        (groups, 1): complete groups in one micro-batch; or ([group], parts): a group that is cut into several.
    """
    dead = [q for q in range(len(sizes)) if not live[q]]
    large = [q for q in range(len(sizes)) if live[q] and sum(sizes[q]) > budget]
    small = [q for q in range(len(sizes)) if live[q] and sum(sizes[q]) <= budget]
    large.sort(key=lambda q: -parts_needed(sizes[q], budget))
    (n_large,) = agree([len(large)])
    while len(large) < n_large:
        large.append((small or dead).pop())
    parts = agree([parts_needed(sizes[q], budget) for q in large]) if large else []

    together: list[list[int]] = []
    room = 0
    for q in small:
        if not together or sum(sizes[q]) > room:
            together.append([])
            room = budget
        together[-1].append(q)
        room -= sum(sizes[q])
    (count,) = agree([len(together)])
    while len(together) < count:
        together.append([dead.pop()] if dead else [max(together, key=len).pop()])
    return [*(([q], n) for q, n in zip(large, parts, strict=True)), *((groups, 1) for groups in together)]
