"""Random projections that keep inner products of gradients, for those of sequences that never meet in one pass."""

import hashlib
import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from oblr import kernels
from oblr.batch.segments import Segments
from oblr.gradnorm.contractions import product


@dataclass(frozen=True)
class Buckets:
    """``n`` numbers added up in ``count`` buckets with random signs; left as they are where there is one for each.

    Attributes:
        signs: ±1, float32 [n]; number i goes to bucket i mod ``count``.
    """

    signs: Tensor
    count: int

    @classmethod
    def draw(cls, n: int, most: int, generator: torch.Generator, device: torch.device) -> Self:
        signs = 2.0 * torch.randint(2, (n,), generator=generator) - 1
        return cls(kernels.upload(signs if n > most else torch.ones(n), device), min(n, most))

    def sums(self, x: Tensor, first: int = 0) -> Tensor:
        """Of the last axis of ``x`` […, n]: float32 […, count]. A product with mostly zeros is quicker than adding.

        Args:
            first: number that ``x`` begins with, where it has some of the n.
        """
        if x.shape[-1] == self.count:
            return x.float()
        ids = torch.arange(x.shape[-1], device=x.device)
        bucket, sign = self.one_of(ids + first)
        matrix = torch.zeros(len(ids), self.count, device=x.device).index_put_((ids, bucket), sign)
        return product(x.flatten(0, -2), matrix.to(x.dtype)).unflatten(0, x.shape[:-1])

    def one_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The bucket of each of the numbers ``ids``, and its sign."""
        return ids % self.count, self.signs[ids]


class Sketch:
    """``s(G) = PᵀGQ`` of gradients of one parameter: P and Q add rows, and columns, up in few :class:`Buckets`.

    It is linear, and ``E⟨s(G), s(H)⟩ = ⟨G, H⟩`` over the signs, with an error of ``√(4/size)`` of ``‖G‖‖H‖`` at most,
    which is independent of other parameters'. It costs what reading the two factors of a gradient costs (Charikar et
    al. 2002; on both sides of a product Pham & Pagh 2013).

    Args:
        shape: of the parameter; all axes after the first are one.
        size: buckets of rows, and of columns; the square of it for vectors.
        seed: whoever has the same seed and ``name`` has the same signs, on whatever device.
        name: of the parameter.
        device: where gradients are.
    """

    def __init__(self, shape: torch.Size, size: int, seed: str, name: str, device: torch.device):
        digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        self.rows = Buckets.draw(shape[0], size**2 if len(shape) == 1 else size, generator, device)
        self.columns = Buckets.draw(math.prod(shape[1:]), size, generator, device)

    def of_sums(self, gradients: Tensor) -> Tensor:
        """Of gradients [S, *shape] themselves: float32 [S, K]."""
        over_columns = self.columns.sums(
            gradients.reshape(len(gradients), len(self.rows.signs), len(self.columns.signs))
        )
        return self.rows.sums(over_columns.mT).flatten(1)

    def of_products(self, b: Tensor, a: Tensor, segments: Segments, first: int = 0) -> Tensor:
        """Of ``Σ_t b_t a_tᵀ`` over the tokens of each segment, of ``b`` [n, rows] and ``a`` [n, columns]: [S, K].

        Args:
            first: row that ``b`` begins with, where it is a slice.
        """
        padded = zip(segments.gather(self.rows.sums(b, first)), segments.gather(self.columns.sums(a)), strict=True)
        return segments.ungather([torch.bmm(y.mT, x) for y, x in padded]).mT.flatten(1)

    def of_lookups(self, ids: Tensor, b: Tensor, segments: Segments) -> Tensor:
        """Of a table's gradient, which has the rows ``b`` [n, columns] added at ``ids`` [n]: [S, K]."""
        bucket, sign = self.rows.one_of(ids)
        own = segments.ids >= 0
        cells = torch.where(own, segments.ids, 0) * self.rows.count + bucket
        added = self.columns.sums(b) * (sign * own)[:, None]
        table = torch.zeros(segments.count * self.rows.count, self.columns.count, device=b.device)
        table.index_add_(0, cells, added)
        return table.unflatten(0, (segments.count, -1)).mT.flatten(1)
