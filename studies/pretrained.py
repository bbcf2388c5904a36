"""What do baselines do for pretrained weights? SmolLM2-135M-Instruct, on sums and on summaries of dialogues.

    python studies/smollm2.py [--share K/N] [--moments TASK] [--kept] [--quick]

- **Moments** (``--moments``): at the model as it was published, and after 60 steps of RLOO, 16 prompts with 256
  responses to each: second moments ``Σ A_i² n_i`` of each baseline over RLOO's and the optimum's, as ``prior.py`` has
  them, and of one that weighs by norms of logits.
- **Runs**: 60 steps of 16 prompts × 8 responses on sums of two numbers of one or two digits, each baseline at three
  rates a factor of two apart, three seeds. Each run has a linear decay and its long steps shortened to the median norm
  so far. Differences to RLOO are taken at the same rate, seed by seed, with Student's 95 % interval.

In bfloat16 beside float32 weights, as large models are trained; transformers samples the responses. Runs and moments
are kept beside ``studies/results/pretrained.parquet``: a second call goes on where the first was stopped. A run takes
hours of a CPU; shares can run side by side on a GPU. ``--kept`` writes what is there. ``--quick``: two steps.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import kept
import neighbours  # noqa: F401
import torch
from comparisons import student
from contest import Case, Row, Runs, area, final, late
from figures import ROOT, Estimate, Figure, write
from prior import Place, Places, figures_of, place_of
from torch.nn.utils import vector_to_parameters
from training import composed, observed

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel

RUNS = ROOT / "studies" / "results" / "pretrained.parquet"
HORIZON, SEEDS, RATES = 60, (1, 2, 3), (0.01, 0.02, 0.04)
#: Of every run.
COMMON = (
    *("schedule=linear_clipped", "rollout.engine=hf", "rollout.reward_pool.trust=true"),
    *("trainer.precision=bf16-mixed", "policy.logprob_gap_mean=0.1", "policy.logprob_gap_p99=1"),
)
SUMS = ("data.train.params={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 2}", "data.held_out.size=128")
#: By experiment, with what is not its own.
TASKS = {"smollm2_cpu": SUMS, "dialogsum_cpu": ()}
ROWS = tuple(
    Row(name, (f"baseline={baseline}", *more, *COMMON, *SUMS), None)
    for name, baseline, *more in (
        ("rloo", "rloo"),
        ("gradient_weighted", "gradient_weighted"),
        ("gradient_weighted, prior=past", "gradient_weighted", "baseline.prior=past"),
        ("none", "none"),
    )
)
RLOO = ROWS[0]


def logit_moment(place: Place) -> Figure:
    """Of leave-one-out weights that a forward pass tells, over RLOO's."""
    moments = {"rloo": 0.0, "logit": 0.0}
    for groups, proxy in zip(place.steps(), place.proxies["logit"], strict=True):
        weighed = type(groups)(groups.rewards, proxy, groups.lengths, groups.rewards, step_weights=proxy)
        for name, advantages in (("rloo", RLOOBaseline()(groups)), ("logit", GradientWeightedBaseline()(weighed))):
            moments[name] += (advantages.square() * groups.reward_weights).sum().item()
    return Figure("gradient_weighted by logit: second moment, over RLOO's", moments["logit"] / moments["rloo"], "×")


def moments(task: str, more: Sequence[str], horizon: int, prompts: int, responses: int) -> Iterator[Figure]:
    """At the model as published, and after a run of RLOO at the middle rate."""
    settings = ("baseline=rloo", *COMMON, *TASKS[task], *more, f"eta0={RATES[1]:g}", f"steps={horizon + 1}", "seed=11")
    sizes = ("rollout.prompts_per_step=16", "rollout.group_size=8", f"data.held_out.size={prompts}")
    places = Places((0, horizon), responses, 11)
    observed((*settings, *sizes), places, task)
    path = str(composed(["paths.output_dir=unused"], task).policy.path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = PolicyModel(load_model(path, "float32").to(device), 1.0)
    for step, parameters, batch in places.taken:
        vector_to_parameters(parameters, model.parameters())
        place = place_of(batch, model)
        name = f"{task.removesuffix('_cpu')}, after {step} steps"
        yield from figures_of(name, place)
        logit = logit_moment(place)
        yield Figure(f"{name}: {logit.name}", logit.value, logit.unit)


def runs_figures(runs: Runs, horizon: int, seeds: Sequence[int], rates: Sequence[float]) -> Iterator[Figure]:
    """Of each row at each rate of which all seeds are there."""
    for row in ROWS:
        case = Case("smollm2_cpu", row, horizon)
        for rate in rates:
            wanted = [((case.task, *one.overrides(rate, seed)), seed) for one in (case,) for seed in seeds]
            if not all(key in runs.known for key, _ in wanted):
                continue
            records = [runs(case, rate, seed) for seed in seeds]
            title = f"sums, {row.name}, η₀ = {rate:g}"
            for name, measure in {"final accuracy": final, "late reward": late, "area": area}.items():
                values = [100 * measure(record) for record in records]
                middle, low, high = student(values)
                yield Estimate(f"{title}: {name}", middle, "%", low=low, high=high)
                rival = Case("smollm2_cpu", RLOO, horizon)
                keys = [(rival.task, *rival.overrides(rate, seed)) for seed in seeds]
                if row is not RLOO and all(key in runs.known for key in keys):
                    gaps = [v - 100 * measure(runs.known[key]) for v, key in zip(values, keys, strict=True)]
                    middle, low, high = student(gaps)
                    yield Estimate(f"{title}: {name}, over RLOO's", middle, "points", low=low, high=high)
            moment = sum(one.second_moment for one in records) / sum(one.rloo for one in records)
            yield Figure(f"{title}: second moment", moment, "× RLOO on the same rollouts")
            yield Figure(f"{title}: reward of the first step", 100 * mean(one.reward[0] for one in records), "%")


def kept_moments(path: Path) -> Iterator[Figure]:
    lines = path.read_text().splitlines() if path.exists() else []
    for figure in (json.loads(line) for line in lines):
        yield (Estimate if "low" in figure else Figure)(**figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", default="1/1", metavar="K/N", help="of the runs")
    parser.add_argument("--moments", choices=TASKS, help="of this task, in place of runs")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--kept", action="store_true", help="make none")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("more", nargs="*", help="overrides of --moments, as data.path=…")
    asked = parser.parse_args()
    path = RUNS.with_name("pretrained-quick.parquet") if asked.quick else RUNS
    found = path.with_name(f"moments-{path.stem}.jsonl")
    if asked.quick:
        kept.lines_of(path).unlink(missing_ok=True)
        found.unlink(missing_ok=True)
    horizon = 2 if asked.quick else HORIZON
    if asked.moments:
        with found.open("a") as lines:
            sizes = (2, 16) if asked.quick else (16, 256)
            for figure in moments(asked.moments, asked.more, horizon, *sizes):
                lines.write(json.dumps(asdict(figure)) + "\n")
        return
    small = ("rollout.prompts_per_step=1", "data.held_out.size=4") if asked.quick else ()
    runs = Runs(path, everywhere=small)
    share, shares = map(int, asked.share.split("/"))
    todo = [(seed, rate, row) for seed in asked.seeds for rate in asked.rates for row in ROWS]
    for seed, rate, row in [] if asked.kept else todo[: 2 if asked.quick else None][share - 1 :: shares]:
        runs(Case("smollm2_cpu", row, horizon), rate, seed)
    if asked.kept or shares == 1:
        if not asked.quick:
            kept.fold(path)
            runs = Runs(path, makes=False)
        figures = [*kept_moments(found), *runs_figures(runs, horizon, asked.seeds, asked.rates)]
        write(path.stem, figures)


if __name__ == "__main__":
    main()
