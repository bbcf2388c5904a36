"""How far rounding alone takes a model's gradients, whatever its depth, gains and precision: asked of the model itself.

Plain autograd is done again, a few times. Then the output of each layer, and the gradient that comes back to it, are
off by up to their unit roundoff, at random, as if each had been rounded otherwise (Monte Carlo arithmetic: Parker 1997;
stochastic arithmetic: Vignes 1993). Of these times the one that is farthest off counts, for each parameter: a bias
whose gradient is all rounding has few numbers, and once they may happen to agree. Packed rows, other kernels and other
orders of sums do no more than that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from oblr.policy.autograds import NOTHING, Gaps, Plain, Truth, gaps, gaps_of_parts
from oblr.run.randomness import derived_seed

#: Relative differences that are always rounding, by the precision of the layers' products: benchmarks/selfcheck.py.
FLOORS = {torch.float32: 1e-4, torch.bfloat16: torch.finfo(torch.bfloat16).eps}
#: Of log-probabilities: a sum over layers, which has less of it.
OF_LOGS = 0.2
#: How many times as far as plain autograd is from itself a route of the step may be from it. Healthy ones are at most
#: 0.9 times as far, with another attention 1.7 times: benchmarks/selfcheck.py.
TIMES = 3.0
#: How often plain autograd is done again.
SAMPLES = 3


class Limits:
    """What may be rounding: :data:`FLOORS`, and more only where the model itself has more."""

    def __init__(self, plain: Plain, truth: Truth, precision: torch.dtype):
        self.plain, self.truth, self.floor = plain, truth, FLOORS[precision]

    def of(self, found: Gaps) -> Gaps:
        """The limits of these differences. Collective: the same on all ranks, as ``found`` is."""
        floors = torch.full_like(found.gradients, self.floor)
        floor = Gaps(OF_LOGS * self.floor, self.floor, floors, floors)
        each = torch.stack([found.gradients, found.parts])
        if found.logs <= floor.logs and found.norms <= floor.norms and bool((each <= self.floor).all()):
            return floor
        return self.widest

    @cached_property
    def widest(self) -> Gaps:
        """What the model's own rounding allows."""
        far, floor = self.rounding, self.floor
        of_each = (TIMES * torch.stack([far.gradients, far.parts])).clamp(min=floor)
        return Gaps(max(TIMES * far.logs, OF_LOGS * floor), max(TIMES * far.norms, floor), *of_each)

    @cached_property
    def rounding(self) -> Gaps:
        """Between plain autograd and itself, the largest of a few times; 0 where it is no number."""
        times = [self.once(seed) for seed in range(SAMPLES)]
        of_gradients, of_parts = (
            torch.stack([getattr(far, kind) for far in times]).amax(0) for kind in ("gradients", "parts")
        )
        return Gaps(max(far.logs for far in times), max(far.norms for far in times), of_gradients, of_parts)

    def once(self, seed: int) -> Gaps:
        """Between plain autograd and itself with rounding of this seed. Uses ``.grad`` up."""
        model, truth = self.plain.model, self.truth
        model.zero_grad()
        with dithered(model.lm, seed):
            other = self.plain.truth()
        self.plain.add_gradient(-1.0)
        found, expected = (torch.cat([one.norms, one.groups, one.squares.sum()[None]]) for one in (other, truth))
        far = gaps(model, truth, other.logs, found, expected)
        parts = gaps_of_parts(truth, other.parts)
        model.zero_grad()
        # Norms of a few sequences may agree by chance: of the whole gradient, which has more of it, no more does.
        whole = (far.gradients * _weights(truth)).norm().item()
        of_gradients, of_parts = (each.nan_to_num(0, posinf=0) for each in (far.gradients, parts.parts))
        norms = max(_finite(far.norms), _finite(whole))
        return Gaps(_finite(far.logs), norms, of_gradients, of_parts.maximum(2 * of_gradients).clamp(min=norms))


def _finite(gap: float) -> float:
    return gap if gap < torch.inf else 0.0


def _weights(truth: Truth) -> Tensor:
    """What the gap of each parameter counts in that of the whole gradient, on the CPU."""
    whole = truth.squares.sqrt().cpu()
    return (whole + NOTHING * whole.norm()) / whole.norm()


@contextmanager
def dithered(lm: nn.Module, seed: int) -> Iterator[None]:
    """What each layer gives, and the gradient of it, is off by up to its unit roundoff; the same at each pass."""
    handles = [module.register_forward_hook(_hook(name, seed)) for name, module in lm.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(name: str, seed: int) -> Callable[[nn.Module, Any, Any], Any]:
    forward, backward = (derived_seed("dither", name, way, seed) for way in ("forward", "backward"))

    def hook(module: nn.Module, _: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(first, Tensor) or not first.is_floating_point():
            return None
        noisy = _off(first, forward)
        if noisy.requires_grad:
            noisy.register_hook(lambda gradient: _off(gradient, backward))
        return (noisy, *output[1:]) if isinstance(output, tuple) else noisy

    return hook


def _off(x: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(x.device).manual_seed(seed)
    by = torch.empty(x.shape, device=x.device).uniform_(-1, 1, generator=generator)
    return (x * by.mul_(torch.finfo(x.dtype).eps / 2).add_(1)).to(x.dtype)
