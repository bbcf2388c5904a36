"""Lay sequences out in rows for one forward pass, and remember which token belongs to which sequence."""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from oblr.types import Rollout

T = TypeVar("T")
#: Largest share of padding in a packed batch.
PADDING = 0.02
#: Sets of segments of similar length that are filled up to one length.
BUCKETS = 8


@dataclass(frozen=True)
class Segments:
    """Which segment each of ``n`` tokens belongs to. Segments are sequences, or groups of sequences.

    Attributes:
        ids: int64 [n]; −1 for tokens that belong to none.
        count: number of segments S.
    """

    ids: Tensor
    count: int

    @cached_property
    def index(self) -> Tensor:
        """int64 [S, T]: token positions of each segment in order, filled up with ``n``; T is the longest segment."""
        lengths = torch.bincount(self.ids + 1, minlength=self.count + 1)
        order = torch.argsort(self.ids, stable=True)[lengths[0] :]
        lengths = lengths[1:]
        starts = lengths.cumsum(0) - lengths
        column = torch.arange(int(lengths.max()), device=self.ids.device)
        taken = (starts[:, None] + column).clamp(max=max(len(order) - 1, 0))
        return torch.where(column < lengths[:, None], order[taken], len(self.ids))

    @cached_property
    def spans(self) -> list[slice | Tensor]:
        """Where each segment's tokens are: a slice where they lie next to each other, sparing a copy, or indices."""
        spans: list[slice | Tensor] = []
        for row, own in zip(self.index.cpu(), self.index, strict=True):
            length = int((row < len(self.ids)).sum())
            first = int(row[0]) if length else 0
            adjacent = length == 0 or int(row[length - 1]) - first + 1 == length
            spans.append(slice(first, first + length) if adjacent else own[:length])
        return spans

    @cached_property
    def regular(self) -> bool:
        """Whether the tokens are the segments one after the other, all of one length."""
        return torch.equal(self.index.flatten(), torch.arange(len(self.ids), device=self.ids.device))

    @cached_property
    def buckets(self) -> list[tuple[Tensor, Tensor]]:
        """Segments of similar length: their numbers [k], and their rows of :attr:`index`, cut to the longest [k, T]."""
        if self.regular:
            return [(torch.arange(self.count, device=self.ids.device), self.index)]
        lengths = (self.index < len(self.ids)).sum(1)
        parts = torch.argsort(lengths, descending=True).tensor_split(min(BUCKETS, self.count))
        return [(part, self.index[part, : int(lengths[part[0]])]) for part in parts]

    @cached_property
    def order(self) -> Tensor:
        """int64; the tokens of all buckets, one after the other; anything where a segment is filled up."""
        return torch.cat([index.flatten() for _, index in self.buckets]).clamp(max=len(self.ids) - 1)

    def gather(self, x: Tensor, fill: bool = True) -> list[Tensor]:
        """Token rows ``x`` [n, d] regrouped bucket by bucket, [k, T, d] each.

        Rows beyond a segment's end are zeros, or where ``fill`` is False, which is cheaper, those of some other token.
        """
        if self.regular:
            return [x.unflatten(0, self.index.shape)]
        rows = x.index_select(0, self.order).split([index.numel() for _, index in self.buckets])
        padded = [part.unflatten(0, index.shape) for part, (_, index) in zip(rows, self.buckets, strict=True)]
        if not fill:
            return padded
        inside = (index < len(self.ids) for _, index in self.buckets)
        return [part * kept[..., None] for part, kept in zip(padded, inside, strict=True)]

    @cached_property
    def members(self) -> Tensor:
        """float32 [S, n]; 1 where a token belongs to a segment."""
        return (self.ids == torch.arange(self.count, device=self.ids.device)[:, None]).float()

    def sum(self, x: Tensor) -> Tensor:
        """Sum token rows ``x`` [n, …] over each segment: [S, …]."""
        if x.ndim == 2:  # a matrix product, which is far faster than adding row by row
            return self.members.to(x.dtype) @ x
        kept = self.ids >= 0
        return x.new_zeros(self.count, *x.shape[1:]).index_add_(0, self.ids[kept], x[kept])

    def merge(self, size: int) -> "Segments":
        """The same tokens under coarser segments, each of ``size`` consecutive ones."""
        return Segments(self.ids.div(size, rounding_mode="floor"), self.count // size)

    def to(self, device: torch.device) -> "Segments":
        return Segments(self.ids.to(device), self.count)


@dataclass(frozen=True)
class PackedBatch:
    """Sequences laid end to end in rows [R, L]; ``position_ids`` restart with each, so attention never crosses them.

    Attributes:
        input_ids, position_ids: int64 [R, L].
        segments: sequence of each of the R·L tokens, prompts included.
        predictors: int64 [n]; flat positions whose output predicts a response token.
        targets: int64 [n]; those response tokens.
        target_segments: sequence of each target.
        behaviour_logprobs: float32 [n]; the engine's log-probabilities of the targets.
    """

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
        return self.target_segments.ids.argsort(stable=True)

    def to(self, device: torch.device) -> "PackedBatch":
        return PackedBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


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
