"""Which learning rates are best over several steps? In a laboratory small enough to enumerate all that can happen.

    python studies/horizon.py [--quick]

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
0.05, 0.5 and 5. Shapes know the true signal and noise of each step. No rate exceeds ``2/λ`` of the steepest direction.

- Each with its best ``η₀``: constant, linear, cosine, Theorem 4's factor ``f = N·SNR/(1 + N·SNR)``, its root, the root
  under a linear decay, Theorem 4 over the steps that remain (``f`` with ``(T − t)·N·SNR`` for N·SNR), and the noise
  schedule, which is the constant one here, for the gradients of a quadratic only get shorter.
- With nothing tuned: measured, as above, and that under a linear decay.
- The best schedule is what improving on the best of them, rate by rate, leads to.
- At equal samples, so that smaller steps are more steps, each with its best ``η₀``: N in proportion to the noise scale
  ``tr H/‖∇J‖²`` at a constant rate, against the best fixed N at a constant rate and under a linear decay; all from
  1/16 of N to 16 times it, by factors of two.

``--quick`` takes one laboratory and two steps, and one quadratic.
"""

import argparse
import math
from collections.abc import Callable

import enumerated
import neighbours  # noqa: F401
from bound import smoothness
from enumerated import Horizon
from figures import Figure, write
from laboratory import Laboratory
from quadratic import Family, Quadratic, Rule, Seen, Size, best, tuned


def figures_of(seed: int, steps: int) -> list[Figure]:
    whole = Horizon(Laboratory(prompts=2, responses=2, size=3, seed=seed))
    start = whole.objective(whole.lab.theta[None]).item()

    def same(rate: float) -> enumerated.Rule:
        return enumerated.constant([rate] * steps)

    lr, of_constant = enumerated.tuned(whole, same, steps)
    eta0, of_theorem = enumerated.tuned(whole, lambda eta0: enumerated.theorem(whole, eta0), steps)
    bound = 1 / smoothness(whole.lab)
    rates = enumerated.best_rates(whole, steps, start=lr)
    best = whole.run(enumerated.constant(rates), steps)
    name = f"laboratory {seed}, T = {steps}"
    reached = {
        "constant": of_constant,
        "theorem 4, η₀ tuned": of_theorem,
        "theorem 4, η₀ proved": whole.run(enumerated.theorem(whole, bound), steps),
        "measured": whole.run(enumerated.measured(whole), steps),
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

    def over_what_remains(seen: Seen) -> float:
        gathered = (1 - seen.share) * steps * seen.signal
        return gathered / (gathered + seen.noise)

    return {
        "constant": lambda eta0: lambda seen: eta0,
        "linear": lambda eta0: lambda seen: eta0 * (1 - seen.share),
        "cosine": lambda eta0: lambda seen: eta0 * (1 + math.cos(math.pi * seen.share)) / 2,
        "theorem 4": lambda eta0: lambda seen: eta0 * seen.factor,
        "its root": lambda eta0: lambda seen: eta0 * seen.factor**0.5,
        "its root, linear": lambda eta0: lambda seen: eta0 * (1 - seen.share) * seen.factor**0.5,
        "theorem 4 over what remains": lambda eta0: lambda seen: eta0 * over_what_remains(seen),
    }


#: Rules that need no tuning: Theorem 4 with the curvature along the step in place of its ``1/η₀``.
UNTUNED: dict[str, Rule] = {
    "measured": lambda seen: seen.signal / seen.curvature,
    "measured, linear": lambda seen: (1 - seen.share) * seen.signal / seen.curvature,
}
#: Steps of so many groups, over N.
SIZES = [2.0**power for power in range(-4, 5)]


def at_equal_samples(problem: Quadratic, steps: int) -> dict[str, float]:
    """Progress of steps of other sizes, each way with the best of its rates and scales."""
    shapes = families(steps)

    def best_of(shape: str, size: Callable[[float], Size]) -> float:
        def progress(scale: float) -> float:
            return tuned(lambda eta0: problem.at_equal_samples(shapes[shape](eta0), size(scale), steps))[1]

        return max(map(progress, SIZES))

    def of_noise(scale: float) -> Size:
        return lambda seen: min(max(scale * seen.noise / seen.signal, SIZES[0]), SIZES[-1])

    return {
        "constant, N by the noise scale": best_of("constant", of_noise),
        "constant, best N": best_of("constant", lambda scale: lambda seen: scale),
        "linear, best N": best_of("linear", lambda scale: lambda seen: scale),
    }


def figures_of_quadratic(n_snr: float, steps: int) -> list[Figure]:
    problem = Quadratic.of_spectrum(n_snr)

    def progress(family: Family) -> Callable[[float], float]:
        return lambda eta0: problem.progress(problem.rates(family(eta0), steps))

    found = {name: tuned(progress(family)) for name, family in families(steps).items()}
    leader = max(found, key=lambda name: found[name][1])
    rates, most = best(problem, problem.rates(families(steps)[leader](found[leader][0]), steps))
    title = f"quadratic of N·SNR = {n_snr:g}, T = {steps}"
    reached = {name: progress for name, (_, progress) in found.items()}
    reached |= {name: problem.progress(problem.rates(rule, steps)) for name, rule in UNTUNED.items()}
    reached |= at_equal_samples(problem, steps)
    shares = [
        Figure(f"{title}: {name}", 100 * progress / most, "% of the best's progress")
        for name, progress in reached.items()
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
