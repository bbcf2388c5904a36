"""Which layer of a model that failed its self-check is off first; slow, for a run that ends anyway."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oblr.batch.packing import PackedBatch
from oblr.gradnorm.capture import capture
from oblr.policy.model import PolicyModel
from oblr.run.ranks import of_run


def strange_layer(model: PolicyModel, packed: PackedBatch, own: Callable[[int], object], rounding: float) -> str:
    """The first layer whose output is another in the step's route than in the model's own forward; its head if none.

    Args:
        own: the model's forward of the i-th sequence of ``packed``.
        rounding: the largest relative difference of outputs that is.
    """
    lm = model.lm
    with torch.no_grad(), _outputs(lm) as computed, capture(lm, packed.segments, packed.target_segments):
        model(packed)
    gaps: dict[str, float] = {}
    for i, size in enumerate(packed.segments.sizes):
        with torch.no_grad(), _outputs(lm) as alone:
            own(i)
        for name, output in computed.items():
            if output.shape[:2] == packed.input_ids.shape and name in alone and alone[name].shape[1] == size:
                expected = alone[name][0]
                gap = (output.flatten(0, 1)[packed.segments.rows[i, :size]] - expected).norm() / expected.norm()
                gaps[name] = max(gaps.get(name, 0.0), gap.nan_to_num(nan=torch.inf).item())
    gaps = _of_all_ranks(gaps)
    return next((name for name, gap in gaps.items() if gap > rounding), "its head")


def _of_all_ranks(gaps: dict[str, float]) -> dict[str, float]:
    """The largest of each: a fault may be one rank's alone, and it is another one that says so."""
    found = of_run().objects(gaps)
    return {name: max(own.get(name, 0.0) for own in found) for name in gaps}


@contextmanager
def _outputs(lm: nn.Module) -> Iterator[dict[str, Tensor]]:
    """What each layer has computed last, float32 on the CPU, in the order in which they were done."""
    found: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) and output else output
            if torch.is_tensor(output) and output.ndim > 2:
                found[name] = output.detach().float().cpu()

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in lm.named_modules() if name]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def backward_order(lm: nn.Module, forward: Callable[[], object]) -> list[str]:
    """Names of the parameters in the order in which a backward pass meets their layers."""
    called: list[nn.Module] = []

    def note(module: nn.Module, _: Any) -> None:
        called.append(module)

    handles = [module.register_forward_pre_hook(note) for module in lm.modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    turn = {module: number for number, module in enumerate(called)}
    modules = dict(lm.named_modules())
    names = [name for name, _ in lm.named_parameters()]
    return sorted(names, key=lambda name: -turn.get(modules[name.rpartition(".")[0]], len(called)))
