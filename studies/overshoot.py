"""How far beyond a single step's best rate do runs go? Of every kept run, by the products of successive gradients.

    python studies/overshoot.py [--quick]

A step goes from ``θ`` to ``θ' = θ + η ĝ``. Along it the reward's slope is ``⟨∇J, ĝ⟩`` at its start, in expectation
``‖∇J‖²``, and ``⟨∇J(θ'), ĝ⟩`` at its end, of which the next step's gradient, from new responses, gives an unbiased
estimate ``⟨ĝ', ĝ⟩``. Where the slope falls in a straight line, a step of the best rate ends where it is zero, so that a
rate is ``1 − ⟨ĝ', ĝ⟩/‖∇J‖²`` times the best one: 1 is the best of a single step, 2 gains nothing at all, and what is
beyond loses; at a share ``r`` a step gains ``r (2 − r)`` of what the best would. Where η depends on ĝ itself, as the
noise schedule's does, all this holds only about. (``−⟨ĝ', ĝ⟩`` is the hypergradient of arXiv 1703.04782.)

Each figure is a ratio of sums over a part of the steps, with ``‖∇J‖²`` free of the noise of N prompts. Runs are those
of ``studies/results.py``; intervals are 95 %, from resampled runs. A rate that only the tuning has run, on one seed
or two, has none. ``--quick``: one task.
"""

import math
from collections.abc import Iterator, Sequence

import neighbours  # noqa: F401
import numpy as np
from contest import FULL, Case, Runs
from figures import Estimate, Figure, asked_to_be_quick, write
from results import CONTEST, DRAWN, PARTS, RIVAL
from training import TASKS, Record

from oblr.batch.types import Moments

#: Shares of a run.
PHASES = ((0.0, 0.1), (0.1, 0.2), (0.2, 0.5), (0.5, 1.0))
RESAMPLES = 2000


def slopes(record: Record, phase: tuple[float, float]) -> tuple[float, float]:
    """Sums over a run's steps of the slope at their end and at their start."""
    n_steps = len(record.reward)
    first, last = (round(share * n_steps) for share in phase)
    at_end = at_start = 0.0
    for step in range(first, min(last, n_steps - 1)):
        nothing = 0.0 in record.mean_square[step : step + 2]  # where all responses of a group agree, in every group
        product = 0.0 if nothing else record.alignment[step + 1]
        if not math.isnan(product):  # a rate of zero tells no gradient
            moments = Moments(FULL, record.mean_square[step], record.square_mean[step])
            at_end += product
            at_start += moments.mean_square - moments.noise / FULL
    return at_end, at_start


def beyond(sums: np.ndarray) -> np.ndarray:
    """The rate over the best of a single step, of sums of slopes at the end and at the start [..., 2]."""
    return 1 - sums[..., 0] / sums[..., 1]


def figure(name: str, records: Sequence[Record], phase: tuple[float, float]) -> Figure:
    sums = np.array([slopes(record, phase) for record in records])
    value = float(beyond(sums.sum(0)))
    if len(records) < 3:
        return Figure(name, value, "× best")
    drawn = np.random.default_rng(0).integers(0, len(records), (RESAMPLES, len(records)))
    low, high = np.percentile(beyond(sums[drawn].sum(1)), [2.5, 97.5])
    return Estimate(name, value, "× best", low=float(low), high=float(high))


def runs_at(case: Case, rate: float, seeds: Sequence[int], runs: Runs) -> list[Record]:
    """Those that have been made."""
    keys = [(case.task, *case.overrides(rate, seed)) for seed in seeds]
    return [runs.known[key] for key in keys if key in runs.known]


def figures(tasks: Sequence[str], runs: Runs) -> Iterator[Figure]:
    for part in PARTS:
        if part.name not in DRAWN:
            continue
        for case in (case for case in part.cases() if case.task in tasks):
            tuned = runs.tuned(case)
            for rate in (tuned, 2 * tuned) if case.row == RIVAL else (tuned,):
                records = runs_at(case, rate, (*part.seeds_of(case), *runs.tuning_seeds), runs)
                for first, last in PHASES:
                    share = f"{100 * first:.0f} to {100 * last:.0f} % of the steps"
                    yield figure(f"{case.name}, η₀ = {rate:g}: {share}", records, (first, last))


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    runs = Runs(CONTEST, makes=False)
    write("overshoot-quick" if quick else "overshoot", list(figures(TASKS[:1] if quick else TASKS, runs)))


if __name__ == "__main__":
    main()
