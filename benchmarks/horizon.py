"""Which learning rates are best over several steps? In a laboratory small enough to enumerate all that can happen.

    python benchmarks/horizon.py [--quick]

Each laboratory is a policy of two prompts, two responses, and three shared parameters, that takes T steps of N = 2
groups of G = 2 responses under the gradient-weighted baseline. What rates make of it is the progress of the expected
reward, exactly, over that of the best schedule:

- constant, and Theorem 4's shape ``η₀ ‖∇J‖²/E‖ĝ‖²`` with true moments, each with its best ``lr`` or ``η₀``;
- Theorem 4 with the ``η₀`` that it proves, ``1/(B_R L + B_R² M)``, which needs no tuning;
- measured: Theorem 4 with the curvature along each policy's own steps in place of that bound. It needs no tuning, but a
  ceiling where next to nothing curves down: 100, above the best constant rates of these laboratories.

How the best schedule moves is its last rate over its first. ``--quick`` takes one laboratory and two steps.
"""

import argparse
import sys

from report import ROOT, Figure, write

sys.path.insert(0, str(ROOT / "tests"))
from theory.bound import smoothness
from theory.horizon import Horizon, Rule, best_rates, constant, measured, theorem, tuned
from theory.laboratory import Laboratory


def figures_of(seed: int, steps: int) -> list[Figure]:
    horizon = Horizon(Laboratory(prompts=2, responses=2, size=3, seed=seed))
    start = horizon.objective(horizon.lab.theta[None]).item()

    def same(rate: float) -> Rule:
        return constant([rate] * steps)

    lr, of_constant = tuned(horizon, same, steps)
    eta0, of_theorem = tuned(horizon, lambda eta0: theorem(horizon, eta0), steps)
    bound = 1 / smoothness(horizon.lab)
    rates = best_rates(horizon, steps, start=lr)
    best = horizon.run(constant(rates), steps)
    name = f"laboratory {seed}, T = {steps}"
    reached = {
        "constant": of_constant,
        "theorem 4, η₀ tuned": of_theorem,
        "theorem 4, η₀ proved": horizon.run(theorem(horizon, bound), steps),
        "measured": horizon.run(measured(horizon), steps),
    }
    shares = [
        Figure(f"{name}: {rule}", 100 * (value - start) / (best - start), "% of the best's progress")
        for rule, value in reached.items()
    ]
    facts = [
        Figure(f"{name}: the best's progress", best - start, "of reward"),
        Figure(f"{name}: last of the best rates", rates[-1] / rates[0], "× the first"),
        Figure(f"{name}: best η₀", eta0 / bound, "× the proved one"),
    ]
    return facts + shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    cases = [(2, 2)] if quick else [(seed, steps) for seed in range(4) for steps in (1, 2, 3)]
    write("horizon-quick" if quick else "horizon", [figure for case in cases for figure in figures_of(*case)])


if __name__ == "__main__":
    main()
