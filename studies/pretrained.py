"""What do baselines do for pretrained weights? SmolLM2-135M-Instruct, on sums and on summaries of dialogues.

    python studies/pretrained.py [--share K/N] [--moments TASK] [--kept] [--quick]

- **Moments** (``--moments``): at the model as it was published, and but for ``--untrained`` after 60 steps of RLOO; 16
  prompts with 256 responses to each, or as many as ``--responses`` says: second moments ``Σ A_i² n_i`` of each baseline
  over RLOO's and the optimum's, as ``prior.py`` has them, and of one that weighs by norms of logits.
- **Runs**: 60 steps of 8 prompts × 4 responses on sums of two numbers of one or two digits. Each run has a linear
  decay and its long steps shortened to the median norm so far. Each baseline has the best of at least three rates, a
  factor of two apart, by late reward on the first of three seeds; differences to RLOO are taken seed by seed, with
  Student's 95 % interval.

In bfloat16 beside float32 weights, as large models are trained; vLLM samples the responses. Runs and moments are kept
beside ``studies/results/pretrained.parquet``: a second call goes on where the first was stopped. A run takes a quarter
of an hour of a CPU; shares, each of other baselines, can run side by side. ``--kept`` writes what is there.
``--quick``: two steps of the pocket policy.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean

import kept
import neighbours  # noqa: F401
import torch
from contest import FULL, GROUP, Case, MissingRunError, Row, Runs
from figures import ROOT, Estimate, Figure, write
from prior import Place, Places, figures_of, place_of
from results import case_figures
from torch.nn.utils import vector_to_parameters
from training import Record, composed, observed

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.types import Moments
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel

RUNS = ROOT / "studies" / "results" / "pretrained.parquet"
STEPS, PROMPTS, RESPONSES, SEEDS = 60, 8, 4, (1, 2, 3)
#: Of every run.
COMMON = (
    *("schedule=linear_clipped", "rollout.reward_pool.trust=true"),
    *("trainer.precision=bf16-mixed", "policy.logprob_gap_mean=0.1", "policy.logprob_gap_p99=1"),
)
SUMS = ("data.train.params={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 2}", "data.held_out.size=64")
#: By experiment, with what is not its own.
TASKS = {"smollm2_cpu": SUMS, "dialogsum_cpu": ()}
SHORT = "pocket"
ROWS = tuple(
    Row(name, (f"baseline={baseline}", *more, *COMMON, *SUMS), rate, PROMPTS, RESPONSES)
    for name, rate, baseline, *more in (
        ("rloo", 0.005, "rloo"),
        ("gradient_weighted", 0.005, "gradient_weighted"),
        ("gradient_weighted, prior=past", 0.01, "gradient_weighted", "baseline.prior=past"),
    )
)
RLOO = ROWS[0]
RIVALS = {"rloo": "RLOO's", "gradient_weighted": "the paper's"}


def logit_moments(name: str, place: Place) -> Iterator[Figure]:
    """Of leave-one-out weights that a forward pass tells, over RLOO's; none where no group differs."""
    ours = rloos = 0.0
    for groups, proxy in zip(place.steps(), place.proxies["logit"], strict=True):
        weighed = replace(groups, reward_weights=proxy, step_weights=proxy)
        ours += (GradientWeightedBaseline()(weighed).double().square() * groups.reward_weights).sum().item()
        rloos += (RLOOBaseline()(groups).double().square() * groups.reward_weights).sum().item()
    if rloos:
        yield Figure(f"{name}: gradient_weighted by logit: second moment, over RLOO's", ours / rloos, "×")


def moments(task: str, more: Sequence[str], steps: int, prompts: int, responses: int) -> Iterator[Figure]:
    """At the model as published, and after so many steps of RLOO, if they are any."""
    settings = (
        "baseline=rloo",
        *COMMON,
        *TASKS.get(task, SUMS),
        *more,
        f"eta0={RLOO.rate:g}",
        f"steps={steps + 1}",
        "seed=11",
    )
    sizes = ("rollout.prompts_per_step=16", "rollout.group_size=8", f"data.held_out.size={prompts}")
    places = Places((0, steps), responses, 11)
    observed((*settings, *sizes), places, task)
    path = str(composed(["paths.output_dir=unused"], task).policy.path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = PolicyModel(load_model(path, "float32").to(device), 1.0)
    for after, parameters, batch in places.taken:
        vector_to_parameters(parameters, model.parameters())
        place = place_of(batch, model)
        name = f"{task.removesuffix('_cpu')}, after {after} steps"
        yield from figures_of(name, place)
        yield from logit_moments(name, place)


def noise(record: Record, steps: int) -> float:
    """``tr H``, the trace of the covariance of one group's gradient: a mean over the first steps."""
    pairs = zip(record.mean_square[:steps], record.square_mean[:steps], strict=True)
    return mean(Moments(PROMPTS, *pair).noise for pair in pairs)


def runs_figures(runs: Runs, rows: Sequence[Row], task: str, horizon: int) -> Iterator[Figure]:
    """Of each row of which all runs are there, if RLOO's are, which is the first."""
    known: dict[Row, Sequence[Record]] = {}
    for row in rows:
        with suppress(MissingRunError):
            known[row] = runs.of(Case(task, row, horizon), SEEDS)
    if rows[0] not in known:
        return
    for row, records in known.items():
        case = Case(task, row, horizon)
        rivals = {RIVALS[other.name]: known[other] for other in rows if other.name in RIVALS and other in known}
        others = {name: theirs for name, theirs in rivals.items() if theirs is not records}
        yield from case_figures(case, records, others, known[rows[0]], runs.tuned(case))
        yield Figure(f"{case.name}: tr H of the first step", mean(noise(one, 1) for one in records), "")
        yield Figure(f"{case.name}: tr H, mean over steps", mean(noise(one, STEPS) for one in records), "")
        yield Figure(f"{case.name}: reward of the first step", 100 * mean(one.reward[0] for one in records), "%")


def kept_moments(path: Path) -> Iterator[Figure]:
    lines = path.read_text().splitlines() if path.exists() else []
    for figure in (json.loads(line) for line in lines):
        yield (Estimate if "low" in figure else Figure)(**figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", default="1/1", metavar="K/N", help="of the runs")
    parser.add_argument("--moments", choices=TASKS, help="of this task, in place of runs")
    parser.add_argument("--untrained", action="store_true", help="moments of the published model alone")
    parser.add_argument("--responses", type=int, default=256, help="of moments, to each prompt")
    parser.add_argument("--kept", action="store_true", help="make none")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("more", nargs="*", help="overrides of --moments, as data.path=…")
    asked = parser.parse_args()
    path, task, steps, rows = RUNS, "smollm2_cpu", STEPS, ROWS
    if asked.quick:
        path, task, steps = RUNS.with_name("pretrained-quick.parquet"), SHORT, 2
        rows = tuple(replace(row, rate=None, group=GROUP) for row in ROWS[:2])
    found = path.with_name(f"moments-{path.stem}.jsonl")
    if asked.quick:
        kept.lines_of(path).unlink(missing_ok=True)
        found.unlink(missing_ok=True)
    if asked.quick or asked.moments:
        sizes = (4, 32) if asked.quick else (16, asked.responses)
        with found.open("a") as lines:
            for figure in moments(asked.moments or task, asked.more, 0 if asked.untrained else steps, *sizes):
                lines.write(json.dumps(asdict(figure)) + "\n")
        if asked.moments:
            return
    horizon = steps * rows[0].prompts * rows[0].group // (FULL * GROUP)
    runs = Runs(path, SEEDS[:1], ("data.held_out.size=8",) if asked.quick else ())
    share, shares = map(int, asked.share.split("/"))
    for row in () if asked.kept else rows[share - 1 :: shares]:
        runs.of(Case(task, row, horizon), SEEDS)
    if asked.kept or shares == 1:
        if not asked.quick and kept.lines_of(path).exists():
            kept.fold(path)
        runs.makes = False
        write(path.stem, [*kept_moments(found), *runs_figures(runs, rows, task, horizon)])


if __name__ == "__main__":
    main()
