"""How good is each estimate of the SNR, and of the factor ``N·SNR/(1 + N·SNR)`` that it gives the learning rate?

    python studies/estimators.py [--quick]

Group gradients are Gaussian with a known ``‖∇J‖²`` and ``tr H = 1``, isotropic in 64 dimensions, so that the truth is a
dial: N·SNR is 0, 0.1, 1 or 10, whatever N. 64 stands for the effective dimension ``(tr H)²/tr H²`` of the noise, which
is what the spread depends on: ``N·SNR`` of a single step is known to about ``√((2 + 4 N·SNR)/64)`` at best.

- ``plug_in``, ``debiased``, ``ema`` (decay 0.9, the first 100 steps left out): as in ``oblr.schedules.snr``. The truth
  stands still here, which favours the average: ten steps after N·SNR falls from 1 to 0.1 it still says 0.41.

A figure is the mean of the factor over steps, with its standard deviation and the truth as its unit. ``error`` figures
are root mean squares over steps and all N.
"""

import math

import neighbours  # noqa: F401
import torch
from figures import Figure, asked_to_be_quick, write
from torch import Tensor

from oblr.batch.types import Moments
from oblr.schedules.snr import SNREstimates, shrinkage

DIMENSIONS, DECAY, BURN_IN, SEED = 64, 0.9, 100, 0
GROUPS = (4, 16, 64, 256, 1024)
TRUTHS = (0.0, 0.1, 1.0, 10.0)
ESTIMATORS = ("plug_in", "debiased", "ema")


def estimates(truth: float, n_groups: int, steps: int, generator: torch.Generator) -> dict[str, Tensor]:
    """N·SNR at every step by each estimator, float64 [steps]."""
    mean = torch.full((DIMENSIONS,), math.sqrt(truth / n_groups / DIMENSIONS), dtype=torch.float64)
    by_group = SNREstimates(DECAY)
    found: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    for step in range(BURN_IN + steps):
        noise = torch.randn(n_groups, DIMENSIONS, generator=generator, dtype=torch.float64) / math.sqrt(DIMENSIONS)
        groups = mean + noise
        moments = Moments(n_groups, groups.mean(0).square().sum().item(), groups.square().sum(1).mean().item())
        snrs = by_group.update(moments)
        if step >= BURN_IN:
            for name in ESTIMATORS:
                found[name].append(n_groups * snrs[name])
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    steps, generator = 100 if quick else 4000, torch.Generator().manual_seed(SEED)
    rows, summary = [], []
    for truth in TRUTHS:
        errors: dict[str, list[Tensor]] = {name: [] for name in ESTIMATORS}
        for n_groups in GROUPS:
            for name, found in estimates(truth, n_groups, steps, generator).items():
                factors = found / (1 + found)
                errors[name].append((factors - shrinkage(truth)).square().mean())
                unit = f"± {factors.std().item():.2f}, truth {shrinkage(truth):.2f}"
                rows.append(Figure(f"N·SNR = {truth:g}, N = {n_groups}: factor, {name}", factors.mean().item(), unit))
        for name, squares in errors.items():
            value = torch.stack(squares).mean().sqrt().item()
            summary.append(Figure(f"N·SNR = {truth:g}: error of the factor, {name}", value, ""))
    write("estimators-quick" if quick else "estimators", summary + rows)


if __name__ == "__main__":
    main()
