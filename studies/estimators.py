"""How good is each estimate of the SNR, and of the factor ``N·SNR/(1 + N·SNR)`` that it gives the learning rate?

    python studies/estimators.py [--quick]

Group gradients are Gaussian with a known ``‖∇J‖²`` and ``tr H = 1``, isotropic in 64 dimensions, so that the truth is a
dial: N·SNR is 0, 0.1, 1 or 10, whatever N. 64 stands for the effective dimension ``(tr H)²/tr H²`` of the noise, which
is what the spread depends on: ``N·SNR`` of a single step is known to about ``√((2 + 4 N·SNR)/64)`` at best.

- ``plug_in``, ``debiased``, ``ema`` (decay 0.9, the first 100 steps left out): as in ``oblr.schedules.snr``. The truth
  stands still here, which favours the average: ten steps after N·SNR falls from 1 to 0.1 it still says 0.41.
- ``two_batch``: McCandlish et al.'s, from the step's gradient and its two halves', no group gradients needed.
  ``two_batch_ema`` smooths it as ``ema`` does, and as they do: it is the same estimate with the halves for groups.

A figure is the mean of the factor over steps; beside it, ``spread``, the standard deviation of the factor over steps,
and ``snr`` and ``snr_spread``, the same of N·SNR. ``error`` figures are root mean squares over steps and all N.
"""

import argparse
import math
from dataclasses import dataclass

import neighbours  # noqa: F401
import torch
from figures import Figure, write
from torch import Tensor

from oblr.batch.types import Moments
from oblr.schedules.snr import SNREstimates, shrinkage

DIMENSIONS, DECAY, BURN_IN, SEED = 64, 0.9, 100, 0
GROUPS = (4, 16, 64, 256, 1024)
TRUTHS = (0.0, 0.1, 1.0, 10.0)
ESTIMATORS = ("plug_in", "debiased", "ema", "two_batch", "two_batch_ema")


@dataclass(frozen=True)
class Estimate(Figure):
    """The mean factor of an estimator, and with it what its estimates are like from step to step."""

    spread: float = math.nan
    snr: float = math.nan
    snr_spread: float = math.nan


def two_batch(small: float, small_groups: int, big: float, big_groups: int) -> tuple[float, float]:
    """``‖∇J‖²`` and ``tr H`` from gradients of two sizes of batch, both unbiased (arXiv 1812.06162, appendix A.1).

    From ``E‖ĝ_B‖² = ‖∇J‖² + tr H/B``: ``‖∇J‖² = (B‖ĝ_B‖² − b‖ĝ_b‖²)/(B − b)`` and
    ``tr H = (‖ĝ_b‖² − ‖ĝ_B‖²)/(1/b − 1/B)``. It needs no gradient of a single group. Where it has them (``b = 1``,
    ``‖ĝ_b‖²`` is M2) it is the estimate of :class:`Moments`. Two halves are one difference of gradients: they do not
    know the noise any better as B grows.

    Args:
        small: ``‖ĝ_b‖²``, mean over the small batches.  small_groups: b.
        big: ``‖ĝ_B‖²``.  big_groups: B > b.
    """
    signal = (big_groups * big - small_groups * small) / (big_groups - small_groups)
    return signal, (small - big) / (1 / small_groups - 1 / big_groups)


def estimates(truth: float, n_groups: int, steps: int, generator: torch.Generator) -> dict[str, Tensor]:
    """N·SNR at every step by each estimator, float64 [steps]."""
    mean = torch.full((DIMENSIONS,), math.sqrt(truth / n_groups / DIMENSIONS), dtype=torch.float64)
    by_group, by_half = SNREstimates(DECAY), SNREstimates(DECAY)
    found: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    for step in range(BURN_IN + steps):
        noise = torch.randn(n_groups, DIMENSIONS, generator=generator, dtype=torch.float64) / math.sqrt(DIMENSIONS)
        groups = mean + noise
        moments = Moments(n_groups, groups.mean(0).square().sum().item(), groups.square().sum(1).mean().item())
        halves = groups.view(2, -1, DIMENSIONS).mean(1).square().sum(1).mean().item()
        signal, tr_h = two_batch(halves, n_groups // 2, moments.mean_square, n_groups)
        halves_ema = by_half.update(Moments(2, moments.mean_square, halves))["ema"]
        snrs: dict[str, float] = {**by_group.update(moments), "two_batch": max(signal, 0.0) / tr_h}
        if step >= BURN_IN:
            for name, snr in snrs.items():
                found[name].append(n_groups * snr)
            found["two_batch_ema"].append(2 * halves_ema)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    steps, generator = 100 if quick else 4000, torch.Generator().manual_seed(SEED)
    rows, summary = [], []
    for truth in TRUTHS:
        errors: dict[str, list[Tensor]] = {name: [] for name in ESTIMATORS}
        for n_groups in GROUPS:
            for name, found in estimates(truth, n_groups, steps, generator).items():
                factors = found / (1 + found)
                errors[name].append((factors - shrinkage(truth)).square().mean())
                spread, snr, snr_spread = factors.std().item(), found.mean().item(), found.std().item()
                unit = f"± {spread:.2f}, truth {shrinkage(truth):.2f}; N·SNR {snr:.2f} ± {snr_spread:.2f}"
                label = f"N·SNR = {truth:g}, N = {n_groups}: factor, {name}"
                rows.append(Estimate(label, factors.mean().item(), unit, "", None, spread, snr, snr_spread))
        for name, squares in errors.items():
            value = torch.stack(squares).mean().sqrt().item()
            summary.append(Figure(f"N·SNR = {truth:g}: error of the factor, {name}", value, ""))
    write("estimators-quick" if quick else "estimators", summary + rows)


if __name__ == "__main__":
    main()
