"""The layers of a model inside vLLM, which fuses them, shards them, and on a CPU packs their weights.

Runs in vLLM's worker, where the model is. Written for vLLM 0.24 to 0.32.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oblr.errors import StaleEngineError
from oblr.rollout.readback import HEAD, Block, Part


class _Share(NamedTuple):
    """Rows or columns of a weight that a layer has: ``size`` of them from ``first`` on, at ``offset`` in the layer."""

    first: int
    size: int
    offset: int = 0

    def of(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Positions in ``indices`` of those that are here, and where in the layer they are."""
        here = ((indices >= self.first) & (indices < self.first + self.size)).nonzero()[:, 0]
        return here, indices[here] - self.first + self.offset


ALL = _Share(0, 2**62)


@torch.inference_mode()
def read(model: Any, blocks: Iterable[Block]) -> list[Part]:
    """What this worker computes with, on the CPU.

    Linear layers are asked with one-hot inputs: ``weight`` itself may be empty, or not what the layer multiplies with.
    A product of one number and 1 and of others with 0 is exact.

    Raises:
        StaleEngineError: there is no such weight, or none that can be read.
    """
    return [_read(model, block) for block in blocks]


def _read(model: Any, block: Block) -> Part:
    path, _, kind = block.name.rpartition(".")
    parent, _, own = path.rpartition(".")
    fused = {part: (name, parts) for name, parts in model.packed_modules_mapping.items() for part in parts}
    name, parts = fused.get(own, (own, [own]))
    try:
        layer = model.get_submodule(f"{parent}.{name}".lstrip("."))
    except AttributeError as error:
        raise StaleEngineError(f"the rollout engine has no {block.name} that could be compared") from error
    row_share, column_share = _shares(layer, own, parts, kind)
    rows, own_rows = row_share.of(block.rows)
    columns, own_columns = column_share.of(block.columns)
    if block.name != HEAD and hasattr(layer, "shard_indices"):
        values = layer.quant_method.embedding(layer, own_rows.to(layer.weight.device)).cpu()[:, own_columns]
    elif kind == "weight" and hasattr(layer, "quant_method"):
        values = _columns(layer, own_columns).T.cpu()[own_rows] if len(columns) else torch.empty(len(rows), 0)
    else:
        values = getattr(layer, kind).cpu()[own_rows]
    return Part(rows, columns, values)


def _columns(layer: Any, columns: Tensor) -> Tensor:
    """What a linear layer, or a head, makes of the unit vectors of ``columns``: [columns, rows]."""
    inputs = next(n for n in map(layer.__dict__.get, ("input_size_per_partition", "input_size", "embedding_dim")) if n)
    units = torch.zeros(len(columns), inputs, dtype=layer.weight.dtype, device=layer.weight.device)
    units[torch.arange(len(columns)), columns] = 1
    return layer.quant_method.apply(layer, units)


def _shares(layer: Any, own: str, parts: list[str], kind: str) -> tuple[_Share, _Share]:
    """Rows and columns of the checkpoint's ``own`` that a layer made of ``parts`` has."""
    from vllm.model_executor.layers.linear import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        RowParallelLinear,
    )

    if hasattr(layer, "shard_indices"):  # embedding or head
        first, end = layer.shard_indices.org_vocab_start_index, layer.shard_indices.org_vocab_end_index
        return _Share(first, end - first), ALL
    if isinstance(layer, RowParallelLinear):
        size = layer.input_size_per_partition
        return ALL, _Share(layer.tp_rank * size, size) if kind == "weight" else ALL
    if not isinstance(layer, ColumnParallelLinear):
        return ALL, ALL
    if len(parts) > 1 and isinstance(layer, QKVParallelLinear):
        shard = "qkv"[parts.index(own)]
        size, rank = layer._get_shard_size_mapping(shard), layer.tp_rank
        if shard != "q":
            rank //= layer.num_kv_head_replicas
        return _Share(rank * size, size, layer._get_shard_offset_mapping(shard)), ALL
    if len(parts) > 1 and isinstance(layer, MergedColumnParallelLinear):
        sizes, i = layer.output_partition_sizes, parts.index(own)
        return _Share(layer.tp_rank * sizes[i], sizes[i], sum(sizes[:i])), ALL
    if len(layer.output_partition_sizes) > 1 and layer.tp_size > 1:
        raise StaleEngineError(f"what tensor parallelism makes of the fused {own} cannot be compared")
    return _Share(layer.tp_rank * layer.output_size_per_partition, layer.output_size_per_partition), ALL


def repack_tied_head(model: Any) -> None:
    """On CPU vLLM packs each linear layer's weights when they are loaded, but a reload forgets the tied head's."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    head, embedding = model.lm_head, model.model.embed_tokens
    if head.weight is embedding.weight:
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
