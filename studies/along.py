"""What happened along the contest's runs? Norms of gradients, the start's calibration, and runs that broke down.

    python studies/along.py [--quick]

Nothing is run: all is read from the runs that ``studies/results.py`` keeps, and from those of an earlier edition. The
page of findings quotes it.

- **Norms**: of the gradient-weighted baseline and RLOO at one constant rate, as the paper plots them. Spread is the
  standard deviation over a run's steps.
- **Calibration**: the noise schedule's ``E₀`` is the mean ``‖ĝ‖²`` of the first five steps. How much it differs from
  seed to seed, and how that goes with what the run reaches; intervals are Fisher's.
- **Response**: how changes of the logarithm of a schedule's rate go with those of its own step's ``‖ĝ‖²``. A rate that
  answers its own step weighs gradients by their length.
- **Falls**: rewards of runs that broke down or nearly did, and of the tuning's where it was close.

Means over seeds have Student's intervals. ``--quick``: the norms alone, and no picture.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence

import kept
import neighbours  # noqa: F401
import numpy as np
from contest import Case, Row, Runs, area, late
from curves import draw_norms
from figures import ROOT, Estimate, Figure, write
from results import ADAMW, CONTEST, COSINE, DEFAULT, FALLING, FIVE, RIVAL, RLOO, SHORT, SNR, TEN, over_seeds, row
from training import Record

#: First and last of the steps over which norms are looked at.
PHASES = ((0, 49), (50, 99))
#: Runs of 24 steps, of an earlier edition.
EARLIER = CONTEST.with_name("runs.parquet")
SUMS, RARE, GRADED = "pocket", "pocket_rare", "pocket_graded"
SNR_LINEAR = row("gradient_weighted", "snr_linear", rate=0.04)
#: Single runs that the page speaks of: task, row, horizon, rate and seeds.
SINGLE = (
    (SUMS, COSINE, 300, 0.02, (101, 102)),
    (SUMS, COSINE, 300, 0.01, (101, 102)),
    (SUMS, RIVAL, 300, 0.02, (101,)),
    (SUMS, RIVAL, 300, 0.01, (101, 102)),
    (SUMS, DEFAULT, 300, 0.03, (101, 102)),
    (RARE, DEFAULT, 300, 0.06, (101,)),
    (SUMS, ADAMW, 25, 5e-4, (101, 102)),
    (SUMS, SNR_LINEAR, 100, 0.04, (1, 2, 101, 102)),
    (SUMS, DEFAULT, 100, 0.03, (1, 2, 101, 102)),
    (SUMS, SNR, 100, 0.03, (101, 102)),
    (SUMS, SNR, 100, 0.06, (101, 102)),
)


def lengths(record: Record, phase: tuple[int, int]) -> np.ndarray:
    """``‖ĝ‖`` of a run's steps."""
    return np.sqrt(record.mean_square[phase[0] : phase[1] + 1])


#: What is asked of the lengths of a run's gradients.
ASKED: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda norms: float(norms.mean()),
    "spread": lambda norms: float(norms.std(ddof=1)),
    "spread over mean": lambda norms: float(norms.std(ddof=1) / norms.mean()),
}


def norms(runs: Runs) -> Iterator[Figure]:
    weighted, plain = (runs.of(Case(SUMS, of, 100), FIVE) for of in (RIVAL, RLOO))
    for phase in PHASES:
        for name, asked in ASKED.items():
            title = f"{SUMS}, steps {phase[0]} to {phase[1]}, norm of the gradient, {name}"
            ours, theirs = ([asked(lengths(run, phase)) for run in group] for group in (weighted, plain))
            yield over_seeds(f"{title}: gradient_weighted", "", ours)
            yield over_seeds(f"{title}: rloo", "", theirs)
            yield over_seeds(f"{title}: gradient_weighted over rloo", "", list(np.subtract(ours, theirs)))


def level(record: Record) -> float:
    """``E₀``: mean ``‖ĝ‖²`` of the first five steps that have a gradient."""
    return float(np.mean([square for square in record.mean_square if square > 0][:5]))


def correlation(name: str, a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Pearson's, with Fisher's interval."""
    found = float(np.corrcoef(a, b)[0, 1])
    half = 1.96 / math.sqrt(len(a) - 3)
    low, high = math.tanh(math.atanh(found) - half), math.tanh(math.atanh(found) + half)
    return Estimate(name, found, "correlation", low=low, high=high)


def calibration(runs: Runs) -> Iterator[Figure]:
    for task in SHORT:
        for horizon in (100, 300):
            case = Case(task, DEFAULT, horizon)
            records = runs.of(case, TEN)
            levels = [level(record) for record in records]
            yield Figure(f"{case.name}: E₀, largest of {len(TEN)} seeds", max(levels) / min(levels), "× smallest")
            for measure in (area, late):
                reached = [measure(record) for record in records]
                title = f"{case.name}: log E₀ and {'area' if measure is area else 'late reward'}"
                yield correlation(title, [math.log(of) for of in levels], reached)
    case = Case(GRADED, DEFAULT, 100)
    for steps in (slice(0, 1), slice(2, 6)):
        rewards = [100 * float(np.mean(record.reward[steps])) for record in runs.of(case, TEN)]
        yield over_seeds(f"{case.name}: reward of steps {steps.start} to {steps.stop - 1}", "%", rewards)


def response(record: Record) -> float:
    """Correlation of the changes of ``log η`` and ``log ‖ĝ‖²`` from step to step; a step without either is left out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.diff(np.log([record.lr, record.mean_square]))
    rate, square = changes[:, np.isfinite(changes).all(0)]
    return float(np.corrcoef(rate, square)[0, 1])


def responses(runs: Runs) -> Iterator[Figure]:
    for case in (Case(SUMS, DEFAULT, 100), Case(SUMS, SNR, 25), Case(SUMS, SNR, 100)):
        found = [response(record) for record in runs.of(case, FIVE)]
        yield over_seeds(f"{case.name}: changes of log η and log ‖ĝ‖²", "correlation", found)


def falls(runs: Runs) -> Iterator[Figure]:
    for task, of, horizon, rate, seeds in SINGLE:
        case = Case(task, of, horizon)
        for seed in seeds:
            yield Figure(
                f"{case.name}, η₀ = {rate:g}, seed {seed}: late reward", 100 * late(runs(case, rate, seed)), "%"
            )
    case = Case(SUMS, SNR, 100)
    chosen, other = (100 * runs.score(case, rate) for rate in (0.06, 0.03))
    yield Figure(
        f"{case.name}, η₀ = 0.06: late reward on the tuning seeds, over that of 0.03", chosen - other, "points"
    )
    fell = min(min(runs(case, 0.06, seed).reward[10:]) for seed in runs.tuning_seeds)
    yield Figure(f"{case.name}, η₀ = 0.06: least reward after step 10, tuning seeds", 100 * fell, "%")

    clipped = runs.of(Case(RARE, FALLING[1], 100), FIVE)
    fell = min(min(record.reward[10:]) for record in clipped)
    yield Figure(f"{RARE}, clipped cosine: least reward after step 10", 100 * fell, "%")

    def spread(task: str, of: Row) -> float:
        rewards = [100 * late(record) for record in runs.of(Case(task, of, 300), TEN)]
        return max(rewards) - min(rewards)

    for name, rows in (("constant", (RIVAL,)), ("rates that fall", (COSINE, DEFAULT))):
        most = max(spread(task, of) for task in SHORT for of in rows)
        yield Figure(f"300 steps, {name}: late reward, largest difference of two seeds", most, "points")
    ours = [run for task in SHORT for run in runs.of(Case(task, DEFAULT, 300), (*TEN, *runs.tuning_seeds))]
    yield Figure("300 steps, default: runs at its rate", len(ours), "")
    yield Figure("300 steps, default: least late reward of them", 100 * min(map(late, ours)), "%")
    dip, step = min(
        (reward, step)
        for run in runs.of(Case(RARE, DEFAULT, 300), TEN)
        for step, reward in enumerate(run.reward[60:], 60)
    )
    yield Figure(f"{RARE}, 300 steps, default: least reward after step 60", 100 * dip, "%")
    yield Figure(f"{RARE}, 300 steps, default: its step", step, "")
    made = sum({"schedule=snr_linear", "steps=100"} < {*key} for key in runs.known)
    yield Figure(f"{SUMS}, 100 steps, snr_linear: runs", made, "")


def earlier() -> Iterator[Figure]:
    """Baselines under the SNR schedule, 24 steps of sums, η₀ = 0.03, the largest of its grid; seeds 1 to 10."""
    found: dict[str, dict[str, float]] = {}
    for run in kept.read(EARLIER):
        baseline, *_ = (of.removeprefix("baseline=") for of in run["overrides"] if of.startswith("baseline="))
        if {"schedule.estimator=ema", "schedule.eta0=0.03"} < {*run["overrides"]}:
            seed = next(of for of in run["overrides"] if of.startswith("seed="))
            found.setdefault(baseline, {})[seed] = 100 * area(Record(**run["record"]))
    seeds = [f"seed={seed}" for seed in TEN]
    for baseline in ("gradient_weighted", "none"):
        gaps = [found[baseline][seed] - found["rloo"][seed] for seed in seeds]
        yield over_seeds(f"{SUMS}, 24 steps, snr, {baseline}: area, over rloo's", "points", gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    runs = Runs(CONTEST, makes=False)
    if quick:
        return write("along-quick", list(norms(runs)))
    write("along", [*norms(runs), *calibration(runs), *responses(runs), *falls(runs), *earlier()])
    pair = {of.row.overrides[0]: runs.of(of, FIVE) for of in (Case(SUMS, RIVAL, 100), Case(SUMS, RLOO, 100))}
    draw_norms(pair, ROOT / "docs" / "norms.png")


if __name__ == "__main__":
    main()
