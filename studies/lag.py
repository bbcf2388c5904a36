"""Should a learning rate follow the effective sample size of stale responses? In a laboratory that samples, at known J.

    python studies/lag.py [--quick]

Policies of 4 prompts, 8 responses to each and 32 shared parameters, uniform at first, take 100 steps by SGD, of G = 8
responses to each prompt, under the gradient-weighted baseline with importance weights ``w = π/μ``. Responses are of the
policy so many steps before, the lag. Scaled rules have their rate times the effective sample size of the step's
weights, ``ESS = (Σw)²/(n Σw²)``, or its root, which is VCPO's under AdamW (arXiv 2602.17616). Theorem 4's factor has
the true signal, and the noise that two like steps tell.

Every rule has its best ``η₀``, tuned on one draw of 64 runs in each of three laboratories and judged on another. What
is left: how much of what the first policy lacks of the best responses is still missing, a mean over the last quarter of
the steps. Differences are those to the rule that is not scaled, run by run, with 95 % intervals. ``--quick``: one
laboratory, one lag, few runs.
"""

import argparse
from collections.abc import Callable, Iterator

import neighbours  # noqa: F401
import torch
from figures import Estimate, Figure, write
from laboratory import Laboratory
from quadratic import tuned
from staleness import Rule, Seen, Stale
from torch import Tensor

STEPS, LAGS, LABORATORIES, RUNS, OCTAVES = 100, (4, 16), (0, 1, 2), 64, 6
SHAPES: dict[str, Callable[[Seen], Tensor | float]] = {
    "constant": lambda seen: 1.0,
    "linear": lambda seen: 1 - seen.share,
    "theorem 4": lambda seen: seen.factor,
}
SCALES: dict[str, float] = {"": 0.0, " × √ESS": 0.5, " × ESS": 1.0}


def rule_of(shape: str, power: float, eta0: float) -> Rule:
    return lambda seen: eta0 * SHAPES[shape](seen) * seen.ess**power


def judged(policy: Stale, shape: str, power: float, lag: int, steps: int) -> Tensor:
    """What a rule reaches with its best ``η₀`` on another draw than the one that it was tuned on, [R]."""

    def reached(eta0: float, seed: int) -> Tensor:
        return policy.run(rule_of(shape, power, eta0), lag, steps, seed)

    eta0, _ = tuned(lambda eta0: reached(eta0, 1).mean().item(), OCTAVES)
    return reached(eta0, 2)


def left(lab: Laboratory, reached: Tensor) -> Tensor:
    """Share of the start's shortfall that is left, in %."""
    start, most = lab.objective(lab.theta), lab.rewards.max(1).values.mean()
    return 100 * (most - reached) / (most - start)


def figures_of(lag: int, laboratories: tuple[int, ...], steps: int, runs: int) -> Iterator[Figure]:
    found: dict[str, list[Tensor]] = {}
    for seed in laboratories:
        lab = Laboratory(prompts=4, responses=8, size=32, seed=seed)
        lab.theta = torch.zeros_like(lab.theta)
        policy = Stale(lab, runs)
        for shape in SHAPES:
            for scale, power in SCALES.items():
                reached = judged(policy, shape, power, lag, steps)
                found.setdefault(shape + scale, []).append(left(lab, reached))
    for rule, of_labs in found.items():
        values, plain = torch.cat(of_labs), torch.cat(found[rule.split(" × ")[0]])
        yield estimate(f"lag {lag}, {rule}: left", "%", values)
        if " × " in rule:
            yield estimate(f"lag {lag}, {rule}: left, over unscaled", "points", values - plain)


def estimate(name: str, unit: str, values: Tensor) -> Estimate:
    """Their mean; the interval is that of the runs of these laboratories."""
    error = 1.96 * values.std().item() / len(values) ** 0.5
    return Estimate(
        name, values.mean().item(), unit, low=values.mean().item() - error, high=values.mean().item() + error
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    if parser.parse_args().quick:
        return write("lag-quick", list(figures_of(4, (0,), 40, 8)))
    write("lag", [figure for lag in LAGS for figure in figures_of(lag, LABORATORIES, STEPS, RUNS)])


if __name__ == "__main__":
    main()
