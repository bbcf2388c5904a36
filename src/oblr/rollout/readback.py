"""Is what an engine computes with what it was sent? Some numbers of every weight, read back and compared bit by bit."""

import base64
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oblr.errors import StaleEngineError
from oblr.run.randomness import derived_seed

#: Of a weight so many rows, and of those so many columns, are read back.
ROWS, COLUMNS = 128, 16
#: A head of this name that is not sent is tied to the embedding, whose name ends so.
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"


class Block(NamedTuple):
    """Which numbers of the weight ``name``: ``weight[rows][:, columns]``; ``weight[rows]`` of one with one dimension.

    Indices are int64; a row or column may come twice.
    """

    name: str
    rows: Tensor
    columns: Tensor


class Part(NamedTuple):
    """What one process of an engine has of a block.

    Attributes:
        rows, columns: of the block's own rows and columns, by position, int64.
        values: [rows, columns], or [rows] of a weight with one dimension.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor


def whole(block: Block, values: Tensor) -> Part:
    """That of a process that has everything."""
    return Part(torch.arange(len(block.rows)), torch.arange(len(block.columns)), values)


def to_text(tuples: Iterable[tuple[Any, ...]]) -> str:
    """Blocks or parts for a message in JSON."""
    file = io.BytesIO()
    torch.save([tuple(one) for one in tuples], file)
    return base64.b64encode(file.getvalue()).decode()


def from_text(text: str) -> list[tuple[Any, ...]]:
    """What :func:`to_text` was given, as plain tuples."""
    return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)


class NotedWeights:
    """Weights on their way to an engine, which can go through them once; a random block of each is noted.

    Args:
        weights: (checkpoint name, tensor) pairs, the same ones on all ranks.
        dtype: of the engine.
        seed: of the run; with ``version`` it says which blocks, so that all ranks note the same.
        version: of the weights.
    """

    def __init__(self, weights: Iterable[tuple[str, Tensor]], dtype: str, seed: int, version: int):
        self.dtype, self.version = getattr(torch, dtype), version
        self.generator = torch.Generator().manual_seed(derived_seed("readback", seed, version))
        self.blocks: list[Block] = []
        self.sent: list[Tensor] = []
        self.stream = self._note(weights)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self.stream

    def _note(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        embedding = None
        for name, weight in weights:
            rows, columns = self._some(weight.shape[0], ROWS), self._some(weight[0].numel(), COLUMNS)
            values = weight[rows][:, columns] if weight.dim() > 1 else weight[rows]
            self.blocks.append(Block(name, rows, columns))
            self.sent.append(values.to(self.dtype))
            if name.endswith(EMBEDDING):
                embedding = len(self.blocks) - 1
            yield name, weight
        if embedding is not None and all(block.name != HEAD for block in self.blocks):
            self.blocks.append(self.blocks[embedding]._replace(name=HEAD))
            self.sent.append(self.sent[embedding])

    def _some(self, size: int, count: int) -> Tensor:
        return torch.randint(size, (count,), generator=self.generator) if size > count else torch.arange(size)

    def compare(self, found: Iterable[Sequence[Part]]) -> None:
        """``found``: the parts of all blocks, process by process.

        Raises:
            StaleEngineError: a number differs, or nobody has it.
        """
        unseen = [torch.ones(len(block.rows), len(block.columns), dtype=torch.bool) for block in self.blocks]
        differ: dict[str, None] = {}
        for parts in found:
            for block, sent, left, part in zip(self.blocks, self.sent, unseen, parts, strict=True):
                expected = sent.cpu()[part.rows]
                if sent.dim() > 1:
                    expected = expected[:, part.columns]
                if not torch.equal(expected, part.values.to(expected)):
                    differ[block.name] = None
                left[part.rows[:, None], part.columns] = False
        self._raise([block.name for block, left in zip(self.blocks, unseen, strict=True) if left.any()], "has no")
        self._raise(list(differ), "has other numbers than it was sent in")

    def _raise(self, names: list[str], fault: str) -> None:
        if names:
            more = f" and {len(names) - 1} more of {len(self.blocks)} weights" if len(names) > 1 else ""
            raise StaleEngineError(
                f"the rollout engine is stale: after sync {self.version} it {fault} {names[0]}{more}"
            )
