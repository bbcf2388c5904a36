"""Which learning rates are best over several steps? In a laboratory small enough to enumerate all that can happen.

    python benchmarks/horizon.py [--quick]

Each laboratory is a policy of two prompts, two responses, and three shared parameters, that takes T steps of N = 2
groups of G = 2 responses under the gradient-weighted baseline. What rates make of it is the progress of the expected
reward, exactly, over that of the best schedule:

- constant, and Theorem 4's shape ``η₀ ‖∇J‖²/E‖ĝ‖²`` with true moments, each with its best ``lr`` or ``η₀``;
- Theorem 4 with the ``η₀`` that it proves, ``1/(B_R L + B_R² M)``, which needs no tuning;
- measured: Theorem 4 with the curvature along each policy's own steps in place of that bound. It needs no tuning, but a
  ceiling where next to nothing curves down: 100, above the best constant rates of these laboratories.

How the best schedule moves is its last rate over its first.

Then horizons that people run, on quadratics whose second moments follow from step to step exactly: curvatures over
three decades, each direction with the same share of the loss, noise in proportion to curvature, N·SNR at the start
0.05, 0.5 and 5. There every shape has its best ``η₀``, and the true signal and noise of each step: constant, linear,
cosine, Theorem 4's factor ``f = N·SNR/(1 + N·SNR)``, its root, the root under a linear decay, and Theorem 4 over the
steps that remain, ``f`` with ``(T − t)·N·SNR`` for N·SNR. The best schedule is what improving on the best of them, rate
by rate, leads to. No rate exceeds ``2/λ`` of the steepest direction.

``--quick`` takes one laboratory and two steps, and one quadratic.
"""

import argparse
import math
import sys

from report import ROOT, Figure, write

sys.path.insert(0, str(ROOT / "tests"))
from theory.bound import smoothness
from theory.horizon import Horizon, Rule, best_rates, constant, measured, theorem, tuned
from theory.laboratory import Laboratory
from theory.quadratic import Family, Quadratic, best
from theory.quadratic import tuned as tuned_on


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


def families(steps: int) -> dict[str, Family]:
    """Shapes of a learning rate over so many steps."""

    def factor(signal: float, noise: float) -> float:
        return signal / (signal + noise)

    return {
        "constant": lambda eta0: lambda signal, noise, t: eta0,
        "linear": lambda eta0: lambda signal, noise, t: eta0 * (1 - t / steps),
        "cosine": lambda eta0: lambda signal, noise, t: eta0 * (1 + math.cos(math.pi * t / steps)) / 2,
        "theorem 4": lambda eta0: lambda signal, noise, t: eta0 * factor(signal, noise),
        "its root": lambda eta0: lambda signal, noise, t: eta0 * factor(signal, noise) ** 0.5,
        "its root, linear": lambda eta0: lambda signal, noise, t: eta0 * (1 - t / steps) * factor(signal, noise) ** 0.5,
        "theorem 4 over what remains": lambda eta0: lambda signal, noise, t: eta0 * factor((steps - t) * signal, noise),
    }


def figures_of_quadratic(n_snr: float, steps: int) -> list[Figure]:
    problem = Quadratic.of_spectrum(n_snr)
    found = {name: tuned_on(problem, family, steps) for name, family in families(steps).items()}
    leader = max(found, key=lambda name: found[name][1])
    rates, most = best(problem, problem.rates(families(steps)[leader](found[leader][0]), steps))
    title = f"quadratic of N·SNR = {n_snr:g}, T = {steps}"
    shares = [
        Figure(f"{title}: {name}", 100 * progress / most, "% of the best's progress")
        for name, (_, progress) in found.items()
    ]
    return [*shares, Figure(f"{title}: last of the best rates", rates[-1] / rates[0], "× the first")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    cases = [(2, 2)] if quick else [(seed, steps) for seed in range(4) for steps in (1, 2, 3)]
    quadratics = [(0.5, 25)] if quick else [(n_snr, steps) for n_snr in (0.05, 0.5, 5) for steps in (25, 100, 300)]
    figures = [figure for case in cases for figure in figures_of(*case)]
    figures += [figure for case in quadratics for figure in figures_of_quadratic(*case)]
    write("horizon-quick" if quick else "horizon", figures)


if __name__ == "__main__":
    main()
