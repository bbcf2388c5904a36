"""Theorems 3, 4 and 6 along real trajectories of the laboratory."""

from collections.abc import Iterator

import torch
from theory.laboratory import Laboratory

from oblr.schedules.decay import InverseSquareRootSchedule
from oblr.schedules.snr import shrinkage
from oblr.types import Moments


def smoothness(lab: Laboratory) -> float:
    """``B_R·L + B_R²·M``: ``‖∇² log π‖ ≤ L`` and ``‖∇ log π‖² ≤ M``, from the features."""
    longest = lab.features.norm(dim=-1).max().item()
    return longest**2 + (2 * longest) ** 2


def bound_of_a_step(lab: Laboratory, eta: float, noise: float, n_groups: int) -> float:
    """What Theorem 3 adds to the loss: ``−η‖∇L‖² + (B_R L + B_R² M)/2 · η² (‖∇L‖² + tr H/N)``."""
    square = lab.gradient.square().sum().item()
    return -eta * square + smoothness(lab) / 2 * eta**2 * (square + noise / n_groups)


def steps_and_bounds(
    seed: int, steps: int = 10, n_groups: int = 2, group_size: int = 2
) -> Iterator[tuple[float, float]]:
    """Expected change of the loss in each step under Theorem 4's rate, by enumeration, and Theorem 3's bound on it."""
    lab, generator = Laboratory(responses=2, seed=seed), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        advantages = lab.constant(lab.optimal_baseline)
        _, noise = lab.moments(advantages, 1, group_size)
        eta = shrinkage(n_groups * lab.gradient.square().sum().item() / noise) / smoothness(lab)
        change = lab.objective(lab.theta).item()
        for chance, prompts, responses in lab.steps(n_groups, group_size):
            step = lab.group_gradients(prompts, responses, advantages).mean(0)
            change -= chance * lab.objective(lab.theta + eta * step).item()
        yield change, bound_of_a_step(lab, eta, noise, n_groups)
        lab.theta = lab.theta + eta * lab.group_gradients(
            *lab.sample(n_groups, group_size, generator), advantages
        ).mean(0)


def average_square_gradient(length: int, seeds: int = 4) -> float:
    """``(1/T) Σ_t ‖∇J(θ_t)‖²`` over runs of T steps with ``η_t ∝ 1/√t``."""
    schedule, squares = InverseSquareRootSchedule(lr=5.0, steps=length), []
    for seed in range(seeds):
        lab, generator = Laboratory(), torch.Generator().manual_seed(seed)
        for t in range(length):
            squares.append(lab.gradient.square().sum().item())
            rate = schedule(Moments(1, 0.0, 0.0), t)
            step = lab.group_gradients(*lab.sample(2, 2, generator), lab.constant(lab.optimal_baseline)).mean(0)
            lab.theta = lab.theta + rate * step
    return sum(squares) / len(squares)
