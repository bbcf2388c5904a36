"""Share sequences out between forward passes, and lay those of one pass out in rows."""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from oblr import kernels
from oblr.batch.segments import Segments, cut
from oblr.batch.types import Rollout

#: Largest share of padding in a packed batch.
PADDING = 0.02


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
        return kernels.upload(self.target_segments.host.argsort(stable=True), self.targets.device)

    @cached_property
    def owners(self) -> Tensor:
        """int64 [n]; sequence of each target, in :attr:`order`."""
        return kernels.upload(self.target_segments.host.sort(stable=True).values, self.targets.device)

    @cached_property
    def bounds(self) -> Tensor:
        """int32; where sequences, and the padding of each row, begin among the R·L tokens, and their end."""
        return kernels.upload(self._bounds, self.targets.device)

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
            kernels.upload(self.input_ids, device),
            kernels.upload(self.position_ids, device),
            self.segments.to(device),
            kernels.upload(self.predictors, device),
            kernels.upload(self.targets, device),
            self.target_segments.to(device),
            kernels.upload(self.behaviour_logprobs, device),
        )


def pack(rollouts: Sequence[Rollout], longest_row: int | None = None) -> PackedBatch:
    """Share sequences out between rows so that at most :data:`PADDING` of the tokens are padding.

    Args:
        longest_row: most tokens of a row, if there is such a bound; it may cost more padding. A longer sequence has a
            row of its own.
    """
    sizes = [r.n_tokens for r in rollouts]
    n_rows = max(1, sum(sizes) // max(sizes))
    while True:
        rows = fill_rows(sizes, n_rows)
        length = longest(sizes, rows)
        if n_rows == 1 or n_rows * length * (1 - PADDING) <= sum(sizes):
            break
        n_rows = n_rows * 19 // 20  # longer rows fill more evenly, but attention costs more in them
    while longest_row is not None and longest(sizes, rows) > max(longest_row, *sizes):
        n_rows += 1
        rows = fill_rows(sizes, n_rows)
    return lay_out(rollouts, rows)


def longest(sizes: Sequence[int], rows: Sequence[Sequence[int]]) -> int:
    """Tokens of the longest of rows that hold sequences of these sizes."""
    return max(sum(sizes[i] for i in row) for row in rows)


def lay_out(rollouts: Sequence[Rollout], rows: Sequence[Sequence[int]]) -> PackedBatch:
    """Sequences in these rows, in the order in which each row names them."""
    sizes = [r.n_tokens for r in rollouts]
    row_length = longest(sizes, rows)
    input_ids = torch.zeros(len(rows), row_length, dtype=torch.long)
    # Positions of the padding run on from the row's last sequence: nothing reads it, and it needs no mask of its own.
    # But none is beyond those of the longest sequence: some models choose frequencies by the largest position there is.
    position_ids = torch.arange(row_length).repeat(len(rows), 1)
    segment_ids = torch.full((len(rows), row_length), -1)
    predictors, targets, owners, behaviour = [], [], [], []
    for row, members in enumerate(rows):
        start = 0
        for i in members:
            prompt, completion = rollouts[i].prompt_ids, rollouts[i].completion
            end = start + rollouts[i].n_tokens
            input_ids[row, start:end] = torch.tensor(prompt + completion.token_ids)
            position_ids[row, start:] = torch.arange(row_length - start) % max(sizes)
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


def parts_needed(sizes: Sequence[int], budget: int) -> int:
    """Fewest parts that a group of sequences of these sizes must be cut into; each holds at least one sequence."""
    for n_parts in range(1, len(sizes)):
        if max(sum(part) for part in cut(sizes, n_parts)) <= budget:
            return n_parts
    return len(sizes)


def partition(
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
