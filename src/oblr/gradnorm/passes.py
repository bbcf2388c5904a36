"""One pass or two, in micro-batches of how many tokens: what has room on a device beside all that lies there.

A plan and a run ask the same functions. They decide from what the device has altogether and what is known to lie there,
so that they choose alike; what is free at the moment depends on what has run before.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from oblr.gradnorm.kinds import is_linear, is_transposed
from oblr.gradnorm.loaded import loaded

Passes = Literal["one", "two"]
#: The better one first.
EITHER: tuple[Passes, ...] = ("one", "two")
GIB = 2**30
#: CUDA context, libraries and communication buffers of a process. Not measured.
CONTEXT = int(1.5 * GIB)
#: Share of a device's memory that is left free of what is counted here: for a block at work, a slice of the vocabulary,
#: and gaps of the allocator.
MARGIN = 0.1
#: What is tried where ``policy.token_budget=auto``, the largest first.
BUDGETS = (65_536, 49_152, 32_768, 24_576, 16_384, 12_288, 8192, 6144, 4096, 2048)
#: What autograd holds of a block over what its linear layers read and write: inputs of norms, rotated keys, products.
BETWEEN = 1.15
#: Blocks of a sharded model that are whole at a time: at work, and gathered ahead.
WHOLE = 3


@dataclass(frozen=True)
class Layout:
    """How a run lies on its devices.

    Attributes:
        computed: what layers compute in.
        shards: ranks that share weights, gradients and optimizer state out between them; 0: each has all.
        offload: whether those lie in the machine's memory (FSDP2).
        bucketed: whether there are buckets for the gradients besides (DDP).
        states: numbers that the optimizer keeps of each parameter, see :func:`states_of`.
        reference: whether the policy as it was before training is there, too.
        context: bytes of the process itself.
        beside: bytes that others have of the device while the policy trains, as an engine that does not sleep.
        largest: most tokens of a group; one that is spread over micro-batches takes a whole float32 gradient.
    """

    computed: torch.dtype
    shards: int = 0
    offload: bool = False
    bucketed: bool = False
    states: float = 0.0
    reference: bool = False
    context: int = 0
    beside: float = 0.0
    largest: int = 0


def states_of(make_optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]) -> float:
    """Bytes of state that an optimizer keeps per byte of a matrix that it updates."""
    p = nn.Parameter(torch.zeros(64, 64))
    p.grad = torch.zeros_like(p)
    optimizer = make_optimizer([p])
    optimizer.step()
    state = [value for value in optimizer.state[p].values() if isinstance(value, Tensor) and value.ndim]
    return sum(value.nbytes for value in state) / p.nbytes


@dataclass(frozen=True)
class Needs:
    """Bytes that updates of a model take of a rank's device.

    Attributes:
        lm: the model, whole or sharded, real or not.
    """

    lm: nn.Module
    layout: Layout

    @cached_property
    def lasting(self) -> float:
        """Of what is there before the first update: weights, the reference, the process and others."""
        weights = sum(p.numel() * p.element_size() for p in self.lm.parameters()) / (self.layout.shards or 1)
        there = 0.0 if self.layout.offload else weights
        own = self._trained if self.layout.bucketed else 0.0
        return there + weights * self.layout.reference + own + self.layout.context + self.layout.beside

    @cached_property
    def updating(self) -> float:
        """Of what micro-batches find besides: gradients, optimizer state, and weights as they are computed with."""
        layout, own = self.layout, self._trained / (self.layout.shards or 1)
        kept = 0.0 if layout.offload else own * (1 + layout.states)
        return kept + (self._gathered if layout.shards else self._rounded)

    @cached_property
    def _n_trained(self) -> int:
        return sum(p.numel() for p in self.lm.parameters() if p.requires_grad)

    @cached_property
    def _trained(self) -> float:
        return sum(p.numel() * p.element_size() for p in self.lm.parameters() if p.requires_grad)

    @cached_property
    def _rounded(self) -> float:
        """Copies in autocast's precision, which last from micro-batch to micro-batch, and the largest once more."""
        found = (layer.get_parameter("weight") for layer in _linear(self.lm))
        weights = {id(w): w for w in found if w.dtype != self.layout.computed}
        sizes = [w.numel() for w in weights.values()]
        return (sum(sizes) + max(sizes, default=0)) * self.layout.computed.itemsize

    @cached_property
    def _gathered(self) -> float:
        """Whole weights and float32 gradients of the root, and of the blocks that are whole at a time."""
        blocks = list(getattr(getattr(self.lm, "base_model", self.lm), "layers", ()))
        each = max((_numel(block) for block in blocks), default=0)
        root = _numel(self.lm) - sum(map(_numel, blocks))
        return root * (self.layout.computed.itemsize + 4) + WHOLE * each * self.layout.computed.itemsize

    def of_tokens(self, passes: Passes, tokens: int) -> float:
        """Of a micro-batch of ``tokens`` when it takes most.

        What autograd holds is all there when the backward pass begins, with what one pass keeps of the head; what one
        pass keeps of all layers, when it ends.
        """
        kept, of_head, held = self._a_token
        size = tokens * self.layout.computed.itemsize
        spread = 4 * self._n_trained + size * held if self.layout.largest > tokens else 0.0
        return max(spread, size * (max(kept, held + of_head) if passes == "one" else held))

    @cached_property
    def _a_token(self) -> tuple[float, float, float]:
        """Numbers of a token that one pass keeps, those of the head among them, and that autograd holds."""
        kept = of_head = held = 0.0
        head = getattr(self.lm, "get_output_embeddings", lambda: None)()
        for module, again in _modules(self.lm):
            layers = [layer for layer in module.children() if is_linear(layer) or is_transposed(layer)]
            own = _read_and_written([layer for layer in layers if layer.get_parameter("weight").requires_grad])
            kept += own
            if head in layers:
                of_head += own
            elif not again:
                held += BETWEEN * _read_and_written(layers)
            if _recomputes(module):  # what enters it, in float32
                held += 4 / self.layout.computed.itemsize * min((_size(each, 0) for each in _linear(module)), default=0)
        return kept, of_head, held


def choose(needs: Needs, passes: Sequence[Passes], budgets: Sequence[int], room: float) -> tuple[Passes, int]:
    """The first pair that has room: one pass before two, and of each the largest budget; the least if none has.

    Args:
        room: bytes that micro-batches may take, see :func:`room_of`; the least of all ranks, which must choose alike.
    """
    pairs = [(p, tokens) for p in passes for tokens in budgets]
    least = min(pairs, key=lambda pair: needs.of_tokens(*pair))
    return next((pair for pair in pairs if needs.of_tokens(*pair) <= room), least)


def room_of(needs: Needs, total: float) -> float:
    """Bytes that micro-batches may take of a device of ``total`` bytes."""
    return (1 - MARGIN) * total - needs.lasting - needs.updating


def _modules(module: nn.Module, again: bool = False) -> Iterator[tuple[nn.Module, bool]]:
    """All modules, and whether each is computed again in the backward pass."""
    again = again or _recomputes(module)
    yield module, again
    for child in module.children():
        yield from _modules(child, again)


def _recomputes(module: nn.Module) -> bool:
    checkpointing = loaded("transformers.modeling_layers", "GradientCheckpointingLayer")
    return isinstance(module, checkpointing) and module.gradient_checkpointing


def _linear(module: nn.Module) -> Iterator[nn.Module]:
    return (layer for layer in module.modules() if is_linear(layer) or is_transposed(layer))


def _read_and_written(layers: Sequence[nn.Module]) -> int:
    """Numbers of a token: all layers of an attention or MLP but the last read what that is given, the last the rest."""
    read = {_size(layer, 0) for layer in layers[:-1]}
    return sum(read) + sum(_size(layer, 0) for layer in layers[-1:]) + sum(_size(layer, 1) for layer in layers)


def _size(layer: nn.Module, side: int) -> int:
    """Numbers that a linear layer reads of a token, or on the other side writes."""
    return layer.get_parameter("weight").shape[side if is_transposed(layer) else 1 - side]


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def total_memory(device: torch.device, sharing: int = 1) -> float:
    """Bytes of a GPU, as its driver reports them, or a process's share of memory that so many share."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / sharing


def free_memory(device: torch.device, sharing: int = 1) -> float:
    """Bytes that a process may take now, which on a GPU its allocator may hold already: reserved, and not allocated."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    with open("/proc/meminfo") as lines:
        (available,) = (line for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(available.split()[1]) / sharing
