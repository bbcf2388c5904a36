"""What helps? Baselines × schedules on the pocket policy, many seeds, every learning rate tuned alike.

    python benchmarks/results.py [--share K/N] [--quick]

Each cell of the table is a baseline under a constant or an SNR learning rate: 24 steps of N = 16 prompts × G = 8
responses with vLLM. Its ``lr`` (constant) or ``eta0`` (SNR) is the one of a grid of three with the best area under the
curve on two seeds of their own; then ten other seeds are run, the same ones in every cell.

- Final accuracy: sampled, on 256 held-out problems, after the last step. Area under the curve: mean held-out accuracy
  over the run, by the trapezoid rule. Both as interquartile means over seeds, with 95 % bootstrap intervals that
  resample seeds inside a cell. The difference to RLOO under the same schedule is taken seed by seed.
- Variance: second moment ``(R_i − b_i)² n_i`` along the cell's own runs, relative to that of RLOO on the same rollouts;
  and relative to the optimum: on 1,024 groups of the untrained policy, over what a weighted mean of 56 other responses
  to the same prompt gives. Biased baselines change the length of the gradient: no second moment is comparable.
- Collapse: the share of runs that end less accurate than they began. Cost: CPU time of the updates over RLOO's.
- SNR estimators: the schedule under each, in place of the default; and what factor of ``η₀`` each would give for more
  prompts a step, along one RLOO run.

All runs are kept in ``benchmarks/results/runs.jsonl``; a second call goes on where the first was stopped, and
``--share 1/2`` and ``--share 2/2`` can run side by side. ``--quick``: a miniature with results of its own.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from hydra.utils import instantiate
from report import ROOT, Estimate, Figure, write
from tiers import measure, pocket, sample
from training import Record, composed, train

from oblr.baselines.base import Groups
from oblr.metrics.aggregate import area_under_curve, interquartile_mean
from oblr.policy.model import TokenScorer, load_model
from oblr.run.provenance import revision
from oblr.schedules.snr import SNREstimates, shrinkage
from oblr.types import Moments

BASELINES = ("rloo", "none", "group_mean_std", "opo", "gradient_weighted", "adaptive")
BIASED = ("group_mean_std",)
RATES = {"constant": "lr", "snr": "eta0"}
GRID = (3e-3, 1e-2, 3e-2)
TUNING_SEEDS, SEEDS = (101, 102), tuple(range(1, 11))
ESTIMATORS = ("plug_in", "debiased")  # beside ema, the default
GROUP_SIZE = 8
#: What the README's tables stand between.
BEGIN, END = "<!-- benchmarks/results.py -->", "<!-- end -->"


@dataclass(frozen=True)
class Cell:
    """A baseline under a schedule."""

    baseline: str
    schedule: str
    estimator: str = "ema"

    @property
    def name(self) -> str:
        return f"{self.baseline}, {self.schedule}" + (f" {self.estimator}" if self.estimator != "ema" else "")

    def overrides(self, rate: float) -> list[str]:
        chosen = [f"baseline={self.baseline}", f"schedule={self.schedule}", f"schedule.{RATES[self.schedule]}={rate}"]
        return chosen + ([f"schedule.estimator={self.estimator}"] if self.schedule == "snr" else [])


@dataclass(frozen=True)
class Plan:
    """Which runs there are."""

    cells: tuple[Cell, ...]
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    every: int
    prompts: tuple[int, ...]  # N of the estimators' table
    variance_prompts: int


TABLE = tuple(Cell(baseline, schedule) for schedule in RATES for baseline in BASELINES)
WHOLE = Plan(
    (*TABLE, *(Cell("gradient_weighted", "snr", estimator) for estimator in ESTIMATORS)),
    *(TUNING_SEEDS, SEEDS, ("steps=24",), 8, (16, 64, 128), 128),
)
QUICK = Plan(
    tuple(Cell(baseline, "snr") for baseline in ("rloo", "gradient_weighted")),
    *((101,), (1, 2), ("steps=2", "rollout.prompts_per_step=4", "data.held_out.size=8"), 1, (4,), 8),
)


class Runs:
    """The runs of a plan, made where they are missing and kept in a file."""

    def __init__(self, path: Path, plan: Plan):
        self.path, self.plan = path, plan
        lines = path.read_text().splitlines() if path.exists() else []
        self.kept = {tuple(run["overrides"]): Record(**run["record"]) for run in map(json.loads, lines)}

    def __call__(self, *overrides: str) -> Record:
        key = (*self.plan.overrides, *overrides)
        if key not in self.kept:
            record = train(key, self.plan.every)
            with self.path.open("a") as file:
                run = {"overrides": key, "revision": revision(ROOT), "record": asdict(record)}
                file.write(json.dumps(run) + "\n")
            self.kept[key] = record
            print(f"{len(self.kept)} runs  {' '.join(overrides)}  {final(record):.1%}", flush=True)
        return self.kept[key]

    def tuned(self, cell: Cell) -> float:
        """The rate of the grid with the largest mean area under the curve on the tuning seeds."""

        def mean_area(rate: float) -> float:
            runs = [self(*cell.overrides(rate), f"seed={seed}") for seed in self.plan.tuning_seeds]
            return statistics.mean(map(area, runs))

        return max(GRID, key=mean_area)

    def of(self, cell: Cell) -> list[Record]:
        """The runs with the tuned rate, by seed."""
        return [self(*cell.overrides(self.tuned(cell)), f"seed={seed}") for seed in self.plan.seeds]


def final(record: Record) -> float:
    return list(record.accuracy.values())[-1]


def area(record: Record) -> float:
    """Mean held-out accuracy over the run."""
    return area_under_curve([int(step) for step in record.accuracy], list(record.accuracy.values()))


def over_seeds(name: str, unit: str, values: Sequence[float]) -> Estimate:
    """Their interquartile mean, with its interval."""
    mean, low, high = interquartile_mean(values)
    return Estimate(name, mean, unit, low=low, high=high)


def ratio(records: Sequence[Record]) -> float:
    return sum(record.second_moment for record in records) / sum(record.rloo for record in records)


def cell_figures(cell: Cell, runs: Runs, optimum: dict[str, float]) -> Iterator[Figure]:
    """A row of the table."""
    records, rloo = runs.of(cell), runs.of(Cell("rloo", cell.schedule))
    yield Figure(f"{cell.name}: {RATES[cell.schedule]}", runs.tuned(cell), "chosen from " + "/".join(map(str, GRID)))
    for name, measure_of in (("final accuracy", final), ("area under the curve", area)):
        yield over_seeds(f"{cell.name}: {name}", "%", [100 * measure_of(record) for record in records])
        differences = [100 * (measure_of(a) - measure_of(b)) for a, b in zip(records, rloo, strict=True)]
        yield over_seeds(f"{cell.name}: {name}, over RLOO's", "points", differences)
    if cell.baseline not in BIASED:
        yield Figure(f"{cell.name}: variance in its runs", ratio(records), "× RLOO")
        yield Figure(f"{cell.name}: variance, untrained policy", optimum[cell.baseline], "× optimum")
    collapsed = [final(record) < record.accuracy["0"] for record in records]
    yield Figure(f"{cell.name}: collapsed runs", 100 * statistics.mean(collapsed), "%")
    cost = sum(r.update_seconds for r in records) / sum(r.update_seconds for r in rloo)
    yield Figure(f"{cell.name}: cost of the updates", cost, "× RLOO")


def over_the_optimum(prompts: int) -> dict[str, float]:
    """Second moment of every baseline over the optimal one's, 64 responses of the untrained policy to each prompt."""
    policy = pocket(prompts)
    batch = sample(policy)
    norms = measure(batch, TokenScorer(load_model(str(policy.path), "float32"), 1.0))["exact"]

    def steps(values: torch.Tensor) -> torch.Tensor:
        """[prompts, 64] → [steps, 16 or fewer prompts, 8], a prompt once in a step."""
        groups = values.view(prompts, -1, GROUP_SIZE).transpose(0, 1)
        return groups.reshape(-1, min(prompts, 16), GROUP_SIZE)

    rewards, weights, lengths = steps(batch.rewards), steps(norms), steps(batch.lengths)
    sums = [(x.sum(1, keepdim=True) - x.view(prompts, -1, GROUP_SIZE).sum(2)) for x in (norms * batch.rewards, norms)]
    others = (sums[0] / sums[1])[..., None].expand(-1, -1, GROUP_SIZE).reshape(prompts, -1)
    optimum = ((rewards - steps(others)).square() * weights).mean().item()
    moments = {}
    for name in BASELINES:
        baseline, total = composed([f"baseline={name}", "paths.output_dir=unused"]).baseline, 0.0
        baseline = instantiate(baseline)
        for groups in map(Groups, rewards, weights, lengths, rewards):
            total += (baseline(groups).double().square() * groups.weights).mean().item()
            baseline.learn(groups)
        moments[name] = total / len(rewards) / optimum
    return moments


def estimator_figures(n: int, runs: Runs) -> Iterator[Figure]:
    """Factors of η₀ along a run of N prompts a step: mean, and spread over steps, by estimator."""
    record = runs("baseline=rloo", "schedule=constant", "schedule.lr=3e-3", f"rollout.prompts_per_step={n}", "seed=1")
    estimates, factors = SNREstimates(0.9), []
    for moments in map(Moments, [n] * len(record.lr), record.mean_square, record.square_mean):
        factors.append([shrinkage(n * snr) for snr in estimates.update(moments).values()])
    for name, column in zip(("plug_in", "debiased", "ema"), zip(*factors, strict=True), strict=True):
        yield Figure(
            f"N = {n}: factor, {name}", statistics.mean(column), f"± {statistics.pstdev(column):.2f} over steps"
        )


def table(plan: Plan, figures: Sequence[Figure]) -> str:
    """The README's tables, in Markdown."""
    by_name = {figure.name: figure for figure in figures}

    def cell_of(name: str, form: str) -> str:
        figure = by_name.get(name)
        if isinstance(figure, Estimate):
            return f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]"
        return "" if figure is None else f"{figure.value:{form}}"

    columns = (
        ("η₀", RATES, "g"),
        ("final accuracy, %", "final accuracy", ".1f"),
        ("area, %", "area under the curve", ".1f"),
        ("area over RLOO's", "area under the curve, over RLOO's", "+.1f"),
        ("variance / RLOO", "variance in its runs", ".2f"),
        ("variance / optimum", "variance, untrained policy", ".2f"),
        ("collapsed, %", "collapsed runs", ".0f"),
        ("cost", "cost of the updates", ".2f"),
    )
    lines = ["| baseline, schedule | " + " | ".join(title for title, *_ in columns) + " |", "|---" * 9 + "|"]
    for cell in plan.cells:
        names = (RATES[cell.schedule] if name is RATES else name for _, name, _ in columns)
        row = (cell_of(f"{cell.name}: {name}", form) for name, (*_, form) in zip(names, columns, strict=True))
        lines.append(f"| {cell.name} | " + " | ".join(row) + " |")
    lines += ["", "| factor of η₀, mean ± spread over steps | plug_in | debiased | ema |", "|---" * 4 + "|"]
    for n in plan.prompts:
        found = (by_name[f"N = {n}: factor, {estimator}"] for estimator in ("plug_in", "debiased", "ema"))
        lines.append(
            f"| N = {n} | " + " | ".join(f"{f.value:.2f} {f.unit.removesuffix(' over steps')}" for f in found) + " |"
        )
    return "\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", default="1/1", metavar="K/N", help="of the runs that are missing")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    plan, name = (QUICK, "results-quick") if arguments.quick else (WHOLE, "results")
    part, parts = map(int, arguments.share.split("/"))
    path = ROOT / "benchmarks" / "results" / ("runs-quick.jsonl" if arguments.quick else "runs.jsonl")
    if arguments.quick:
        path.unlink(missing_ok=True)
    runs = Runs(path, plan)
    mine = plan.cells[part - 1 :: parts]
    for cell in mine:
        runs.tuned(cell)
    for seed in plan.seeds:  # a seed in every cell before the next: what there is can be compared
        for cell in mine:
            runs(*cell.overrides(runs.tuned(cell)), f"seed={seed}")
    if parts > 1:
        return
    optimum = over_the_optimum(plan.variance_prompts)
    figures = [figure for cell in plan.cells for figure in cell_figures(cell, runs, optimum)]
    figures += [figure for n in plan.prompts for figure in estimator_figures(n, runs)]
    write(name, figures)
    if not arguments.quick:
        readme = ROOT / "README.md"
        before, _, rest = readme.read_text().partition(BEGIN)
        readme.write_text(before + BEGIN + table(plan, figures) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
