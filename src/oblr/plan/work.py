"""What operations would do on a GPU: floating-point operations, bytes, kernel launches, and waits of the host.

Counted is what CUDA would launch for an operation, of which a dry run sees the CPU's name. Of products and attention
the formulas are the textbook's; of everything else only bytes and launches count, for memory bounds it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry


class Op(NamedTuple):
    """One operation, as all that take the same time are.

    Attributes:
        phase: of the update.
        name: as the dispatcher calls it.
        dtype: of its factors; of the results where it is no product.
        flops: of products and attention; a multiplication and an addition are two.
        bytes: read and written, if nothing stays in a cache.
        launches: kernels.
    """

    phase: str
    name: str
    dtype: str
    flops: int
    bytes: int
    launches: float


class Sync(NamedTuple):
    """A wait of the host for the device. ``line``: the one of our source that asks for it; ``what``: by what."""

    phase: str
    line: str
    what: str


@dataclass
class Work:
    """How often each operation ran, and each wait; linear, so that it can be scaled and extrapolated."""

    ops: Counter[Op] = field(default_factory=Counter)
    syncs: Counter[Sync] = field(default_factory=Counter)

    def __add__(self, other: "Work") -> "Work":
        return Work(_sum(self.ops, other.ops, 1), _sum(self.syncs, other.syncs, 1))

    def __sub__(self, other: "Work") -> "Work":
        return Work(_sum(self.ops, other.ops, -1), _sum(self.syncs, other.syncs, -1))

    def __mul__(self, times: float) -> "Work":
        return Work(_times(self.ops, times), _times(self.syncs, times))

    def copy(self) -> "Work":
        return Work(self.ops.copy(), self.syncs.copy())

    def total(self, quantity: str, where: Callable[[Op], bool] = lambda op: True) -> float:
        """Of ``flops``, ``bytes`` or ``launches``, over the operations that ``where`` picks."""
        return sum(getattr(op, quantity) * n for op, n in self.ops.items() if where(op))

    def of(self, phase: str) -> "Work":
        ops = {op: n for op, n in self.ops.items() if op.phase == phase}
        return Work(Counter(ops), Counter({sync: n for sync, n in self.syncs.items() if sync.phase == phase}))

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(op.phase for op in self.ops))


def _times(counts: Counter[Any], times: float) -> Counter[Any]:
    return Counter({key: n * times for key, n in counts.items()})  # type: ignore[misc]


def _sum(a: Counter[Any], b: Counter[Any], sign: int) -> Counter[Any]:
    total = a.copy()
    for key, n in b.items():
        total[key] += sign * n
    return Counter({key: n for key, n in total.items() if n})


_PRODUCTS: dict[str, Callable[[Any], int]] = {
    "aten.mv": lambda a: 2 * a["self"].numel(),
    "aten.addmv": lambda a: 2 * a["mat"].numel(),
    "aten.dot": lambda a: 2 * a["self"].numel(),
}
#: Nothing runs on the device: allocations, and what only changes how a tensor is looked at.
_FREE = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "_unsafe_view"),
    *(
        "_local_scalar_dense",
        "detach_",
        "set_",
        "resize_",
        "record_stream",
        "squeeze_",
        "unsqueeze_",
        "t_",
        "view_copy",
    ),
    *("transpose_", "as_strided_", "_has_compatible_shallow_copy_type", "is_same_size", "is_pinned"),
}
#: Kernels of operations that take more than one, by reading ATen's CUDA sources; sorting ones are radix sorts.
_LAUNCHES = {
    **dict.fromkeys(("sort", "argsort", "topk"), 4),
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive"), 10),
    **dict.fromkeys(("nonzero", "masked_select", "masked_scatter", "masked_scatter_"), 3),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), 2),
    **dict.fromkeys(("bincount", "histc"), 3),
    "embedding_dense_backward": 6,
    "equal": 2,
    "repeat_interleave": 2,
    "native_layer_norm_backward": 2,
    # what precedes: rows of δ·o; what follows: dq in the inputs' precision
    **dict.fromkeys(("_flash_attention_backward", "_varlen_attn_backward"), 3),
}
#: Waits of the host inside an operation on a GPU; for the boolean masks of indexing see :func:`waits`.
_WAITS = {
    **dict.fromkeys(("_local_scalar_dense", "nonzero", "masked_select", "equal"), 1),
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive"), 1),
    "bincount": 2,  # the least, and the greatest
}
_GATHERS = {"index", "index_select", "gather", "embedding", "take", "_unsafe_index", "take_along_dim"}
_SCATTERS = {
    *("index_put_", "index_put", "_index_put_impl_", "index_add_", "index_add", "index_copy_", "index_fill_"),
    *("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"),
}
#: They write without reading what they write to, or are made like.
_FILLS = {"zero_", "fill_", "uniform_", "normal_", "bernoulli_", "random_", "zeros_like", "ones_like", "full_like"} | {
    *("new_zeros", "new_ones", "new_full", "rand_like", "randn_like", "randint_like"),
}
#: Elements of a block, blocks of a launch and tensors of a launch of multi-tensor kernels (ATen's MultiTensorApply).
_FOREACH = 65_536, 320, 48


def name_of(func: Any) -> str:
    return func.overloadpacket.__name__


def operations(func: Any, args: Any, kwargs: Any, out: Any, phase: str) -> Iterator[Op]:
    """What ``func`` did, or would have done, on a GPU; of an operation on many tensors, each tensor's share."""
    read = [value for key, value in kwargs.items() if key != "out"]  # that is written alone
    name, inputs, outputs = name_of(func), list(tensors((args, *read))), list(tensors(out))
    if name.startswith("_foreach") or name.startswith("_fused_ad") or name == "_fused_sgd_":
        block, blocks, together = _FOREACH
        lists = [arg for arg in args if isinstance(arg, list | tuple) and arg and isinstance(arg[0], Tensor)]
        for each in zip(*lists, strict=True):
            size = sum(map(touched, each)) + touched(each[0])
            yield Op(phase, name, _dtype(each[0]), 0, size, max(each[0].numel() / (block * blocks), 1 / together))
    elif func.is_view or name in _FREE or func.namespace in ("prim", "c10d", "_c10d_functional"):
        return
    else:
        flops = flops_of(func, args, kwargs, out)
        results = outputs or inputs
        dtype = _dtype(inputs[0] if flops else results[0]) if results else ""
        size = bytes_of(name, inputs, outputs)
        if name == "_fused_rms_norm_backward":  # each of its kernels reads gradients, inputs and their scales
            size += (launches_of(name, args) - 1) * sum(map(touched, (args[0], args[1], args[3])))
        yield Op(phase, name, dtype, flops, size, launches_of(name, args))


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def flops_of(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    packet = func.overloadpacket
    if "attention" in (name := name_of(func)) or "varlen_attn" in name:
        bound = arguments(func, args, kwargs)
        return attention_flops(bound, backward="backward" in name) if "query" in bound else 0
    if str(packet) in _PRODUCTS:
        return _PRODUCTS[str(packet)](arguments(func, args, kwargs))
    return flop_registry[packet](*tensors(args), out_val=out) if packet in flop_registry else 0


def attention_flops(bound: dict[str, Any], backward: bool) -> int:
    """``2·L²·(d + d_v)`` a head of a sequence, half of it where causal; a backward pass has 5 products to 2.

    Sequences of unequal lengths, packed, are told by their bounds; where those have no numbers, by the longest.
    """
    q, k, v = bound["query"], bound["key"], bound["value"]
    if "cu_seq_q" in bound:
        bounds = bound["cu_seq_q"]
        if isinstance(bounds, torch._subclasses.FakeTensor):
            full, rest = divmod(len(q), bound["max_q"])
            lengths = [bound["max_q"]] * full + [rest]
        else:
            lengths = bounds.diff().tolist()
        pairs = q.shape[1] * sum(length**2 for length in lengths)
    else:
        pairs = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    forward = 2 * pairs * (q.shape[-1] + v.shape[-1])
    return int(forward * (0.5 if bound.get("is_causal") else 1) * (2.5 if backward else 1))


def bytes_of(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    written = sum(map(touched, outputs))
    if name in _FILLS:
        return written
    if name == "copy_":
        return sum(map(touched, inputs[:2]))
    if name in _GATHERS:
        return 2 * written + sum(map(touched, inputs[1:]))
    if name in _SCATTERS:  # into rows that are read and written
        return 3 * max(map(touched, inputs[1:]), default=0) + (touched(inputs[0]) if not name.endswith("_") else 0)
    return sum(map(touched, inputs)) + written


def touched(x: Tensor) -> int:
    """Bytes of ``x`` in memory; what is expanded is there once."""
    n = x.element_size()
    for size, stride in zip(x.shape, x.stride(), strict=True):
        n *= size if stride or size == 0 else 1
    return n


def launches_of(name: str, args: Any) -> int:
    if name == "_fused_rms_norm_backward":
        return sum(args[-1])  # for the input; for the scale
    if "attention" in name and "backward" in name:
        return 3
    if name.startswith("index_put") or name == "_index_put_impl_":
        return 8 if len(args) > 3 and args[3] else 1  # to accumulate, indices are sorted first
    return _LAUNCHES.get(name, 1)


def waits(func: Any, args: Any, kwargs: Any, on_device: Callable[[Tensor], bool]) -> int:
    """How often the host waits for a GPU inside an operation that has at least one argument on it."""
    name = name_of(func)
    if name in ("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index"):
        return sum(i.dtype in (torch.bool, torch.uint8) and on_device(i) for i in tensors(args[1]))
    if name == "repeat_interleave":
        return int(kwargs.get("output_size") is None)
    if name in ("copy_", "_to_copy"):
        others = {on_device(x) for x in tensors(args)}
        blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
        return int(name == "copy_" and len(others) == 2 and blocking)
    return _WAITS.get(name, 0)


def arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
