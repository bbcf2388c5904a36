"""How long counted work takes: the roofline (Williams et al. 2009), and a host that launches kernel after kernel.

An operation takes ``max(flops / peak, bytes / bandwidth)`` of what is within reach, and no kernel less than its own
start and end. A GPU works while its host launches, so work takes ``max(Σ launches, Σ kernels)``, and each wait empties
the queue once. On a CPU there is nobody to launch for: there both add up.

Left out: cache hits, partly filled waves of small products, clocks that fall under load, kernels that run side by side,
page faults of the allocator, and whatever the host does between operations but launching.
"""

from collections import Counter
from dataclasses import dataclass, replace

from transformers import PretrainedConfig

from oblr.plan.work import Op, Work


@dataclass(frozen=True)
class Speed:
    """A processor. Peaks are its maker's, dense; shares are what good kernels get of them.

    Attributes:
        flops: a second, by dtype of the factors; dtypes that are not named are float32's.
        bandwidth: of its memory, bytes a second.
        link: bytes a second that each of several receives in a collective; 0: not known.
        between: likewise, of the other copies of a sharded policy; 0: as ``link``.
        products: large products on tensor cores reach 0.7 to 0.8 of the peak at these sizes, where power throttles.
        attention: FlashAttention 2, which PyTorch ships, reaches 350 of an H100's 989 TFLOP/s (arXiv 2407.08608).
        streams: of memory, by kernels that read and write each element once.
        launch: seconds of the host for an operation, through Python, dispatcher and autograd.
        kernel: seconds that the smallest kernel takes.
        sync: seconds from the end of the last kernel to the start of the next, where the host has waited.
        serial: whether operations run where they are launched.
    """

    name: str
    flops: dict[str, float]
    bandwidth: float
    link: float = 0.0
    between: float = 0.0
    products: float = 0.75
    attention: float = 0.35
    streams: float = 0.85
    launch: float = 5e-6
    kernel: float = 2e-6
    sync: float = 20e-6
    serial: bool = False

    @property
    def peak(self) -> float:
        return max(self.flops.values())

    def travelling(self, size: float, of_copies: float = 0.0) -> float:
        """Seconds in which a rank receives so many bytes, and of other copies so many; 0 where ``link`` is not known.

        One after the other: a shard of a gradient is whole before it goes to other copies.
        """
        return size / self.link + of_copies / (self.between or self.link) if self.link else 0.0

    def seconds(self, op: Op) -> float:
        share = self.attention if "attention" in op.name or "attn" in op.name else self.products
        compute = op.flops / (share * self.flops.get(op.dtype, self.flops["float32"]))
        return max(compute, op.bytes / (self.streams * self.bandwidth), op.launches * self.kernel)


_HOPPER = {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "float64": 67e12}
#: float32 without TF32, since vLLM sets the precision of products to "highest"; NVLink 4, or InfiniBand at 400 Gbit/s.
GPUS = {
    "h100": Speed("H100 SXM", _HOPPER, 3.35e12, link=400e9),
    "h200": Speed("H200 SXM", _HOPPER, 4.8e12, link=400e9),
}
#: Bytes a second that a GPU receives of another node.
BETWEEN_NODES = 45e9


@dataclass(frozen=True)
class Prediction:
    """Seconds that counted work takes.

    Attributes:
        phases: seconds of the processor by phase.
        launching: of the host, seconds.
        waiting: of the processor for the host, after that has waited, seconds.
    """

    phases: Counter[str]
    launching: float
    waiting: float
    serial: bool = False

    @property
    def seconds(self) -> float:
        working = sum(self.phases.values())
        return (working + self.launching if self.serial else max(working, self.launching)) + self.waiting


def predict(work: Work, speed: Speed) -> Prediction:
    phases: Counter[str] = Counter()
    for op, n in work.ops.items():
        phases[op.phase] += speed.seconds(op) * n  # type: ignore[assignment]
    waiting = 0.0 if speed.serial else speed.sync * sum(work.syncs.values())
    return Prediction(phases, speed.launch * work.total("launches"), waiting, speed.serial)


def model_flops(config: PretrainedConfig, lengths: list[int], targets: int, frozen: bool = False) -> float:
    """Of one forward and backward: ``6·P·T`` and causal attention; the head, where it is asked, and no look-up.

    Args:
        lengths: tokens of each sequence.  targets: tokens that are predicted.
        frozen: whether the weights have no gradients: ``4·P·T``.
    """
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_attention_heads * head_size
    attention = 2 * config.hidden_size * (width + config.num_key_value_heads * head_size)
    block = attention + 3 * config.hidden_size * config.intermediate_size
    weighted = config.num_hidden_layers * block * sum(lengths) + config.hidden_size * config.vocab_size * targets
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    return (4 if frozen else 6) * weighted + 3 * config.num_hidden_layers * 4 * width * pairs


def between_nodes(speed: Speed, nodes: int, apart: bool = False) -> Speed:
    """The processor, where ranks are spread over nodes.

    Args:
        apart: whether the shards of a copy of the policy lie within a node.
    """
    if nodes == 1:
        return speed
    return replace(speed, link=speed.link if apart else BETWEEN_NODES, between=BETWEEN_NODES)
