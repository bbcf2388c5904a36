"""How tight is the paper's bound, and how fast does the gradient fall? In a laboratory small enough to enumerate.

    python studies/bounds.py [--quick]

- Theorem 3: the expected progress of a step under Theorem 4's rate over the progress that the bound promises, along
  ten steps of each run. It is at least 1 if the bound holds. The rate is the proved one, so small that curvature plays
  no part, and then it is 2: a step's progress is ``η‖∇J‖²`` and the bound takes half. How far that rate is from the
  best is in ``horizon.py``.
- Theorem 6: the power of T with which the mean of ``‖∇J‖²`` falls under ``η_t ∝ 1/√t``; the theorem says −1/2 or less.

``--quick`` takes one run and shorter ones.
"""

import math
from collections.abc import Iterator

import neighbours  # noqa: F401
import torch
from bound import bound_of_a_step, smoothness
from figures import Figure, asked_to_be_quick, at_least, at_most, write
from laboratory import Laboratory

from oblr.batch.types import Moments
from oblr.schedules.decay import InverseSquareRootSchedule
from oblr.schedules.snr import shrinkage


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


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    figures: list[Figure] = []
    for seed in range(1 if quick else 3):
        ratios = [change / bound for change, bound in steps_and_bounds(seed)]
        figures.append(at_least(f"seed {seed}: least progress over the bound's", min(ratios), "×", 1))
        figures.append(Figure(f"seed {seed}: mean progress over the bound's", sum(ratios) / len(ratios), "×"))
    longest = 256 if quick else 4096
    slope = math.log(average_square_gradient(longest) / average_square_gradient(64)) / math.log(longest / 64)
    figures.append(at_most(f"power of T in the mean square gradient, T = 64 to {longest}", slope, "", -0.5))
    write("bounds-quick" if quick else "bounds", figures)


if __name__ == "__main__":
    main()
