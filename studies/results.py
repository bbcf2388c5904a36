"""What helps? Learning rates, baselines and optimizers on small policies, each with its rate tuned alike.

    python studies/results.py [--share K/N] [--only PART] [--kept] [--quick]

A row of the table is an algorithm; a case is a row on a task over a horizon of 25, 100 or 300 steps of N = 16 prompts ×
G = 8 responses under vLLM. Rows of smaller steps take more of them: equal numbers of responses.

- **Tuning**: every case's ``eta0`` is tuned on that task and horizon by its late reward, on two seeds that are not used
  again. Rates go by factors of two over a range that grows until the best is inside it.
- **Racing**: at 25 steps all rows are run, on sums; at 100 those that a claim needs, on all tasks, and some others on
  fewer; at 300 the claims alone, without the task of long responses, which takes twice the time. Another row that the
  tuning leaves more than five points of late reward behind the constant rate goes no further on that task.
- **Seeds**: ten of what a claim needs, five of all else and of the task of long responses.
- **Accuracy** is sampled, on 256 held-out problems, after the last step. Training problems are never the same either:
  late reward is their mean over the last quarter of the steps, of far more samples; area is the mean over all. Each is
  a mean over seeds with Student's 95 % interval: five seeds are too few for percentiles of a bootstrap. Differences to
  a rival are taken seed by seed.
- **Greedy accuracy**, the best of a prompt's eight responses and entropy are of runs since 29 November 2026 alone.
- **Cost** is CPU time of rollouts and updates over the constant rate's, the median over seeds. Runs were made on many
  days: a machine can be twice as fast as another, and a run beside other work takes ten times what it takes alone. So
  those seeds alone count whose two runs had as many threads and took as long for a sampled token, within a quarter.
  Updates over rollouts are of one run.

Runs are kept beside ``studies/results/contest.parquet``; a second call goes on where the first was stopped, and
``--share 1/2`` and ``--share 2/2`` can run side by side, with ``OMP_NUM_THREADS=1`` for a core each. ``--kept``, when
they have ended, runs nothing: it takes their runs into ``contest.parquet``, writes the table of those tasks of each
part that are complete into ``contest.json``, and draws the claims' curves into ``docs``. ``--quick``: a miniature with
results of its own.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import kept
import neighbours  # noqa: F401
from comparisons import student
from contest import (
    FULL,
    GROUP,
    TUNING_SEEDS,
    Case,
    MissingRunError,
    Row,
    Runs,
    area,
    area_per_token,
    final,
    last_quarter,
    late,
)
from curves import draw
from figures import ROOT, Estimate, Figure, write
from others import PRETRAINED
from training import TASKS, Record

from oblr.run.progress import shown


def row(
    baseline: str,
    schedule: str,
    *overrides: str,
    rate: float | None = 0.01,
    prompts: int = FULL,
    group: int = GROUP,
) -> Row:
    size = [] if (prompts, group) == (FULL, GROUP) else [f"N = {prompts}", f"G = {group}"]
    name = ", ".join([baseline, schedule, *(override.removeprefix("schedule.") for override in overrides), *size])
    return Row(name, (f"baseline={baseline}", f"schedule={schedule}", *overrides), rate, prompts, group)


#: Every run that has been made.
CONTEST = ROOT / "studies" / "results" / "contest.parquet"
DROPPED = 5.0  # points of late reward on the tuning seeds
#: Whose ``A_i² n_i`` is no second moment of an unbiased gradient: they scale it, or differ from token to token.
APART = tuple(f"baseline={name}" for name in ("group_mean", "group_mean_std", "otb", "value"))
OURS = "gradient_weighted"
RIVAL, COSINE = row(OURS, "constant"), row(OURS, "cosine", rate=0.02)
DEFAULT = row(OURS, "noise_linear", rate=0.03)
#: The rates that a claim has to beat, and the schedule that it is about.
CLAIMS = (RIVAL, COSINE, DEFAULT)
#: The default without its decay.
NOISE = row(OURS, "noise", rate=0.02)
#: The default's decay alone.
LINEAR = row(OURS, "linear", rate=0.02)
#: Long steps shortened to the median gradient so far, under rates that fall.
FALLING = tuple(row(OURS, f"{schedule}_clipped", rate=0.03) for schedule in ("linear", "cosine"))
LINEAR_CLIPPED, _ = FALLING
#: 64 problems, each of which comes again every fourth step; and baselines that remember them.
RECURRING = "data.train.size=64"
FORGETFUL = row(OURS, "constant", RECURRING)
HISTORIES = (
    FORGETFUL,
    row("history", "constant", RECURRING),
    row("history", "constant", "baseline.weighted=false", RECURRING),
)
#: AdamW, whose steps are of one length for each number.
ADAMW = row(OURS, "constant", "optimizer=adamw", rate=1.25e-4)
ADAMS = (
    ADAMW,
    row(OURS, "cosine", "optimizer=adamw", rate=2.5e-4),
    row(OURS, "noise_linear", "optimizer=adamw", rate=2.5e-4),
)
RLOO, RLOO_NOISE = row("rloo", "constant"), row("rloo", "noise_linear", rate=0.03)
#: The paper's rate from averaged moments; the paper's own takes those of the current batch, ``plug_in``.
SMOOTHED = "schedule.estimator=ema"
SNR = row(OURS, "snr", SMOOTHED, rate=0.03)
#: Clipping at the norm of the start, under the default's decay.
CLIPPED = row(OURS, "noise_linear", "schedule.schedule.power=0.5", rate=0.03)
#: Other baselines under the default's schedule.
PRIOR = row(OURS, "noise_linear", "baseline.prior=past", rate=0.03)
#: Weights that a forward pass tells, with a prior and without.
LOGIT = row(OURS, "noise_linear", "gradnorm=logit", rate=0.03)
LOGIT_PRIOR = row(OURS, "noise_linear", "gradnorm=logit", "baseline.prior=past", rate=0.03)
#: Sums whose wrong answers cost 1 and whose right ones are worth nothing.
PENALTY = "pocket_penalty"
NONE = row("none", "noise_linear", rate=0.03)
PRIOR_CLIPPED = row(OURS, "linear_clipped", "baseline.prior=past", rate=0.03)
#: Steps of one length, which falls.
NORMALISED = row(OURS, "normalised", rate=0.08)
NORMALISED_PRIOR = row(OURS, "normalised", "baseline.prior=past", rate=0.08)
#: What every row is compared with.
RIVALS = {
    RIVAL: "the constant rate's",
    COSINE: "cosine's",
    DEFAULT: "noise_linear's",
    FORGETFUL: "gradient_weighted's",
    ADAMW: "AdamW's",
    RLOO: "RLOO's",
    RLOO_NOISE: "RLOO's under noise_linear",
    PRIOR: "the prior's",
    LINEAR: "linear's",
    LINEAR_CLIPPED: "linear_clipped's",
    NORMALISED: "normalised SGD's",
    NORMALISED_PRIOR: "normalised SGD's with the prior",
    SNR: "snr's",
}
#: Long steps shortened, too, under a constant rate, and under Theorem 4's, with a decay or without.
CLIPS = (
    row(OURS, "constant_clipped", rate=0.03),
    *(
        row(OURS, f"snr_clipped{decay}", f"schedule.{inside}estimator={estimator}", rate=0.03)
        for decay, inside in (("", "schedule."), ("_linear", "schedule.schedule."))
        for estimator in ("plug_in", "ema")
    ),
)
#: Other baselines under each of the rates; RLOO's under a constant one, and all under the default's, are further parts.
FACTORIAL = {
    RIVAL: (row(OURS, "constant", "baseline.prior=past"),),
    LINEAR: (row("rloo", "linear", rate=0.02), row(OURS, "linear", "baseline.prior=past", rate=0.02)),
    LINEAR_CLIPPED: (row("rloo", "linear_clipped", rate=0.03),),
}
OPO = row("opo", "noise_linear", rate=0.03)
#: What goes on to 100 steps where it is ahead of the default at 25: others' proposals, and a penalty towards the start.
RACED = (
    row(OURS, "timed", rate=0.015),
    row(OURS, "linear", "optimizer=gated_sgd", rate=0.02),
    row(OURS, "constant", "optimizer=clipped_adamw", rate=1.25e-4),
    row(OURS, "linear", "optimizer=clipped_adamw", rate=2.5e-4),
    row(OURS, "cosine", "optimizer=clipped_adamw", rate=2.5e-4),
    row(OURS, "linear", "schedule.warm_up=3", "optimizer=clipped_adamw", rate=2.5e-4),
    row("group_mean_std", "noise_linear", rate=0.015),
    row(OURS, "noise_linear", "loss=vl_norm", rate=0.03),
    *(row(OURS, "noise_linear", "kl=k3", f"kl.coefficient={beta}", rate=0.03) for beta in (0.01, 0.1)),
)
#: The paper's rate without the paper's weights, tuned, and at the rate that is best with them; and constant rates
#: as they are usually tried: the tuned one is 1e-2.
RLOO_SNR = row("rloo", "snr", SMOOTHED, rate=0.03), row("rloo", "snr", SMOOTHED, "eta0=0.03", rate=None)
USUAL = tuple(row(OURS, "constant", f"schedule.lr={rate:g}", rate=None) for rate in (1e-3, 5e-3))
#: Asked on sums alone: the other baseline, and the SNR schedule.
OTHERS = (RLOO, SNR)
#: The SNR schedule by other estimates and with a floor, its root under a decay, other decays, and four times as
#: many steps of a quarter.
SCHEDULES = (
    row(OURS, "snr", "schedule.estimator=debiased", rate=0.03),
    row(OURS, "snr", "schedule.estimator=plug_in", rate=0.02),
    row(OURS, "snr", SMOOTHED, "schedule.floor=0.3", rate=0.03),
    LINEAR,
    row(OURS, "inverse_sqrt", rate=0.03),
    row(OURS, "snr_linear", rate=0.04),
    row(OURS, "noise_linear", rate=0.015, prompts=4),
)
#: As many responses a step, of more prompts or of fewer.
SIZES = (row(OURS, "constant", prompts=32, group=4), row(OURS, "constant", prompts=8, group=16))
BASELINES = tuple(
    row(baseline, "constant")
    for baseline in (
        *("none", "batch_mean", "group_mean", "group_mean_std", "opo", "otb", "adaptive", "shrinkage"),
        *("remax", "value"),
    )
)
LOSSES = (row("group_mean", "constant", "loss=gepo"), row("group_mean_std", "constant", "loss=capo"))
#: AdamW over 25 steps.
ADAPTIVE = (
    ADAMW,
    row(OURS, "snr", SMOOTHED, "optimizer=adamw", rate=1e-3),
    row(OURS, "noise", "optimizer=adamw", rate=1e-3),
    row(OURS, "noise", "schedule.power=0.5", "optimizer=adamw", rate=1e-3),
)


@dataclass(frozen=True)
class Part:
    """Rows that run on tasks over one horizon.

    Attributes:
        seeds: on every task but that of long responses, which has five at most.
        rivals: those that each row is compared with.
    """

    name: str
    rows: tuple[Row, ...]
    horizon: int
    seeds: tuple[int, ...]
    tasks: tuple[str, ...] = TASKS
    rivals: tuple[Row, ...] = (RIVAL,)

    def cases(self) -> Iterator[Case]:
        for task in self.tasks:
            for chosen in self.rows:
                yield Case(task, chosen, self.horizon)

    def seeds_of(self, case: Case) -> tuple[int, ...]:
        if case in TWICE:
            return TEN
        return self.seeds if case.task in SHORT else self.seeds[: len(FIVE)]


#: Seeds of a row that claims something, and of another.
TEN = tuple(range(1, 11))
FIVE = TEN[:5]
#: Tasks of short responses.
SHORT, SUMS = TASKS[:3], TASKS[:1]
#: Of which there are ten seeds, whatever their part has elsewhere.
TWICE = (Case("pocket", LINEAR_CLIPPED, 100),)
PARTS = (
    Part("claims", CLAIMS, 100, TEN, rivals=(RIVAL, COSINE)),
    Part("noise", (NOISE,), 100, FIVE, rivals=(RIVAL, COSINE, DEFAULT)),
    Part("decay", (LINEAR,), 100, FIVE, SHORT, (RIVAL, DEFAULT)),
    Part("adamw", ADAMS, 100, FIVE, SUMS, (ADAMW, DEFAULT)),
    Part("clipping", (CLIPPED,), 100, FIVE, ("pocket", "pocket_rare"), (DEFAULT,)),
    Part("recurring", HISTORIES, 100, FIVE, SUMS, (FORGETFUL,)),
    Part("others", OTHERS, 100, FIVE, SUMS, (RIVAL, DEFAULT)),
    Part(
        "short",
        (*CLAIMS, NOISE, RLOO, SNR, *BASELINES, *LOSSES, *SIZES, *SCHEDULES, *ADAPTIVE),
        25,
        FIVE,
        SUMS,
        (RIVAL, DEFAULT, RLOO),
    ),
    Part("prior", (RLOO_NOISE, PRIOR), 100, TEN, SHORT, (DEFAULT, RLOO_NOISE)),
    Part("none", (NONE,), 100, FIVE, SHORT, (DEFAULT, RLOO_NOISE)),
    Part("penalty", (RIVAL, DEFAULT, NONE, PRIOR), 100, FIVE, (PENALTY,), (DEFAULT,)),
    Part("logit", (LOGIT,), 100, FIVE, SUMS, (DEFAULT, RLOO_NOISE)),
    Part("logit_prior", (LOGIT_PRIOR,), 100, FIVE, SUMS, (PRIOR, DEFAULT)),
    Part("clips", CLIPS, 100, FIVE, SUMS, (DEFAULT, COSINE)),
    Part("clipped", FALLING, 100, FIVE, SHORT, (DEFAULT, COSINE)),
    *(
        Part(f"crossed: {row.name}", (row,), 100, FIVE, SUMS, (rival, DEFAULT))
        for rival, rows in FACTORIAL.items()
        for row in rows
    ),
    Part("crossed: prior, clipped", (PRIOR_CLIPPED,), 100, FIVE, SUMS, (LINEAR_CLIPPED, DEFAULT, NORMALISED_PRIOR)),
    *(Part(f"raced: {row.name}", (row,), 25, FIVE, SUMS, (DEFAULT,)) for row in RACED),
    *(Part(f"raced: {row.name}", (row,), 25, FIVE, SUMS, (SNR,)) for row in (*RLOO_SNR, *USUAL)),
    Part("opo", (OPO,), 100, FIVE, SUMS, (RLOO_NOISE, DEFAULT)),
    Part("normalised", (NORMALISED,), 100, TEN, SUMS, (DEFAULT, LINEAR_CLIPPED)),
    Part("normalised_rare", (NORMALISED,), 100, FIVE, ("pocket_rare",), (LINEAR_CLIPPED, DEFAULT)),
    Part("normalised_rloo", (row("rloo", "normalised", rate=0.08),), 100, FIVE, SUMS, (NORMALISED, NORMALISED_PRIOR)),
    Part("best", (NORMALISED_PRIOR,), 100, TEN, SUMS, (NORMALISED, PRIOR, DEFAULT, LINEAR_CLIPPED)),
    Part("backward_clipped", FALLING, 100, FIVE, ("backward",), (DEFAULT, COSINE)),
    Part("rotated_clipped", (LINEAR_CLIPPED,), 100, FIVE, ("rotated",), (DEFAULT, COSINE)),
    *(Part(task, (*CLAIMS, PRIOR), 100, FIVE, (task,), (RIVAL, COSINE, DEFAULT)) for task in PRETRAINED),
    Part("backward_rloo", (RLOO_NOISE,), 100, FIVE, ("backward",), (RIVAL, COSINE, DEFAULT)),
    Part("long", CLAIMS, 300, TEN, SHORT, (RIVAL, COSINE)),
)
#: More steps without the prior, which take about as long as 100 with it; of these there is one comparison.
SECONDS = (
    Part("seconds", (DEFAULT,), 146, FIVE, (*SHORT, PENALTY), ()),
    Part("normalised_seconds", (NORMALISED,), 146, FIVE, SUMS, ()),
)
#: The row with the prior, and seeds of the one without whose costs it is compared with.
WITH_PRIOR = {DEFAULT: (PRIOR, FIVE), NORMALISED: (NORMALISED_PRIOR, TEN)}
#: Of which there are pictures.
DRAWN = ("claims", "long")
QUICK = (Part("quick", (RIVAL, row(OURS, "noise", "schedule.level_steps=1")), 2, (1, 2), SUMS),)


def over_seeds(name: str, unit: str, values: Sequence[float]) -> Estimate:
    """Their mean, with its interval."""
    middle, low, high = student(values)
    return Estimate(name, middle, unit, low=low, high=high)


MEASURES: dict[str, Callable[[Record], float]] = {"final accuracy": final, "late reward": late, "area": area}
#: Of runs that kept them, by their units.
KEPT: dict[str, tuple[str, Callable[[Record], float]]] = {
    "greedy accuracy": ("%", lambda run: 100 * run.greedy),
    "late best of each group": ("%", lambda run: 100 * last_quarter(run.best)),
    "late entropy": ("nats", lambda run: last_quarter(run.entropy)),
}
#: Of all tasks together one more.
OF_ALL = MEASURES | {"area per token": area_per_token}


def over(records: Sequence[Record], rivals: Sequence[Record], measure: Callable[[Record], float]) -> list[float]:
    """Points by which runs are ahead of a rival's, seed by seed."""
    return [100 * (measure(a) - measure(b)) for a, b in zip(records, rivals, strict=True)]


def update_share(records: Sequence[Record]) -> float:
    """CPU time of updates over that of rollouts, which is the same whichever day a run was made."""
    return median(run.update_seconds / run.rollout_seconds for run in records)


def case_figures(
    case: Case,
    records: Sequence[Record],
    rivals: dict[str, Sequence[Record]],
    constant: Sequence[Record],
    rate: float | None,
) -> Iterator[Figure]:
    """A row of the table: what it reached, and against rivals on the same seeds; cost is over the constant rate's."""
    if rate is not None:
        yield Figure(f"{case.name}: η₀", rate, "tuned")
    for name, measure in MEASURES.items():
        yield over_seeds(f"{case.name}: {name}", "%", [100 * measure(record) for record in records])
        for rival, theirs in rivals.items():
            gaps = over(records, theirs, measure)
            yield over_seeds(f"{case.name}: {name}, over {rival}", "points", gaps)
            if measure is late and student(gaps).low > 0:
                ahead = sum(gap > 0 for gap in gaps)
                yield Figure(f"{case.name}: seeds whose {name} is ahead of {rival}", ahead, f"of {len(gaps)}")

    for name, (unit, measure) in KEPT.items() if all(run.best for run in records) else ():
        yield over_seeds(f"{case.name}: {name}", unit, [measure(run) for run in records])

    def cost(of: Callable[[Record], float], pairs: Sequence[tuple[Record, Record]]) -> float:
        return median(of(run) / of(other) for run, other in pairs)

    pairs = list(zip(records, constant, strict=True))
    yield Figure(f"{case.name}: updates, over rollouts", update_share(records), "× CPU time")
    if alike := [pair for pair in pairs if of_like_machines(*pair)]:
        whole = cost(lambda run: run.rollout_seconds + run.update_seconds, alike)
        yield Figure(f"{case.name}: CPU time", whole, "× rival")
        yield Figure(f"{case.name}: CPU time of updates", cost(lambda run: run.update_seconds, alike), "× rival")
    if case.row.overrides[0] not in APART:
        moment = sum(run.second_moment for run in records) / sum(run.rloo for run in records)
        yield Figure(f"{case.name}: second moment", moment, "× RLOO on the same rollouts")


def of_like_machines(run: Record, other: Record) -> bool:
    """Whether CPU times of the two can be compared."""
    mine, theirs = (one.rollout_seconds / sum(one.tokens) for one in (run, other))
    return run.threads == other.threads and 0.8 < mine / theirs < 1.25


def points_behind(case: Case, runs: Runs) -> float:
    """By which the best rate of a row is behind the constant one's, in late reward on the tuning seeds."""
    reached = runs.reached(case)  # first: meanwhile another share may run the rival
    return 100 * (runs.reached(replace(case, row=RIVAL)) - reached)


def raced(case: Case, seeds: Sequence[int], runs: Runs) -> list[Record]:
    """The runs of a row with its tuned rate; none where the tuning has left it too far behind.

    What a claim is about, and its rivals, run to the end.
    """
    behind = case.row not in CLAIMS and points_behind(case, runs) > DROPPED
    return [] if behind else runs.of(case, seeds)


def part_figures(part: Part, runs: Runs) -> Iterator[Figure]:
    gaps: dict[tuple[str, str], dict[str, list[list[float]]]] = {}
    for case in part.cases():
        seeds = part.seeds_of(case)
        if not (records := raced(case, seeds, runs)):
            yield Figure(f"{case.name}: dropped, behind the constant rate by", points_behind(case, runs), "points")
            continue
        others = {RIVALS[row]: replace(case, row=row) for row in part.rivals if row != case.row}
        rivals = {name: runs.of(other, seeds) for name, other in others.items()}
        constant = runs.of(replace(case, row=RIVAL), seeds)
        yield from case_figures(case, records, rivals, constant, runs.tuned(case))
        for name, measure in OF_ALL.items():
            for rival, theirs in rivals.items():
                of_row = gaps.setdefault((case.row.name, name), {}).setdefault(rival, [])
                of_row.append(over(records, theirs, measure))
    for (name, measured), of_rivals in gaps.items() if len(part.tasks) > 1 else ():
        for rival, strata in of_rivals.items():
            if len(strata) == len(part.tasks):
                gap, low, high = student(*strata)
                title = f"all tasks, {part.horizon} steps, {name}: {measured}, over {rival}"
                yield Estimate(title, gap, "points", low=low, high=high)
        ahead = sum(all(student(rival).low > 0 for rival in task) for task in zip(*of_rivals.values(), strict=True))
        title = f"{part.horizon} steps, {name}: tasks on which its {measured} is ahead of every rival's"
        yield Figure(title, ahead, f"of {len(part.tasks)}")
    of_cases = sum(len(rivals) for (_, measured), rivals in gaps.items() if measured in MEASURES)
    yield Figure(f"{part.name}: comparisons", of_cases * len(part.tasks), "")


def complete(part: Part, task: str, runs: Runs) -> bool:
    """Whether all runs of a part on a task are there, those that tuned it included; of runs that are not made."""
    try:
        for one in {RIVAL, *part.rivals, *part.rows}:
            raced(case := Case(task, one, part.horizon), part.seeds_of(case), runs)
    except MissingRunError:
        return False
    return True


def kept_parts(runs: Runs) -> Iterator[Part]:
    """Every part, on those tasks of which all its runs are there."""
    for part in PARTS:
        if tasks := tuple(task for task in part.tasks if complete(part, task, runs)):
            yield replace(part, tasks=tasks)


def beside_longer(runs: Runs) -> Iterator[Figure]:
    """The prior over the same rate without it and with more steps; on those tasks of which all runs are there."""
    for case in (case for part in SECONDS for case in part.cases()):
        row, seeds = WITH_PRIOR[case.row]
        prior, alike = Case(case.task, row, 100), Case(case.task, case.row, 100)
        try:
            ours, theirs, fewer = runs.of(prior, FIVE), runs.of(case, FIVE), runs.of(alike, seeds)
        except MissingRunError:
            continue
        if (rate := runs.tuned(case)) is not None:
            yield Figure(f"{case.name}: η₀", rate, "tuned")
        yield over_seeds(f"{case.name}: late reward", "%", [100 * late(run) for run in theirs])
        longer = f"{RIVALS[case.row]} of {case.horizon} steps"
        yield over_seeds(f"{prior.name}: late reward, over {longer}", "points", over(ours, theirs, late))
        like = [run for run in fewer if of_like_machines(run, ours[0])] or fewer  # shares differ less than times
        steps = 100 * (1 + update_share(ours)) / (1 + update_share(like))
        yield Figure(f"{case.name}: steps that take as long as 100 with the prior", steps, "")


def kept_figures(runs: Runs) -> list[Figure]:
    """The table of what is there."""
    return [*(figure for part in kept_parts(runs) for figure in part_figures(part, runs)), *beside_longer(runs)]


def picture(part: Part, runs: Runs) -> None:
    """The curves of a part's rows: ``docs/contest-100.png`` for 100 steps."""
    names = {row: row.name.removeprefix(f"{OURS}, ") for row in part.rows}
    records = {
        task: {
            names[row]: runs.of(case, part.seeds_of(case))
            for row in part.rows
            for case in [Case(task, row, part.horizon)]
        }
        for task in part.tasks
    }
    draw(records, ROOT / "docs" / f"contest-{part.horizon}.png")


def unused(run: dict[str, Any]) -> tuple[str, ...]:
    """What no figure is of: :mod:`overshoot` has products of gradients, of claims; :mod:`along` has norms and rates of
    two further rows; of other rows' tuning there are rewards alone.
    """
    *row, rate = run["overrides"][:3]
    if rate.startswith("eta0=") and tuple(row) in {claimed.overrides for claimed in CLAIMS}:
        return ()
    if (*row, rate) == SNR.overrides or tuple(row) == RLOO.overrides:
        return ("square_mean", "alignment")
    tuning = {f"seed={seed}" for seed in TUNING_SEEDS}.intersection(run["overrides"])
    return ("square_mean", "alignment", "mean_square", "lr", *(("tokens", "best", "entropy") if tuning else ()))


def write_kept(runs: Runs) -> None:
    write("contest", kept_figures(runs))  # first: pictures that differ would count as changes of the code
    for part in kept_parts(runs):
        if part.name in DRAWN:
            picture(part, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", default="1/1", metavar="K/N", help="of the cases")
    parser.add_argument("--only", choices=[part.name for part in (*PARTS, *SECONDS)], help="a part of the table")
    parser.add_argument("--kept", action="store_true", help="the table of what is there")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        path = CONTEST.with_name("contest-quick.parquet")
        kept.lines_of(path).unlink(missing_ok=True)
        runs, parts = Runs(path, (101,), ("rollout.prompts_per_step=4", "data.held_out.size=8")), QUICK
    else:
        runs, parts = Runs(CONTEST), [part for part in (*PARTS, *SECONDS) if arguments.only in (None, part.name)]
    share, shares = map(int, arguments.share.split("/"))
    todo = [] if arguments.kept else [(part, case) for part in parts for case in [*part.cases()][share - 1 :: shares]]
    with shown(len(todo), 0, "configurations") as display:
        display.phase("runs")
        for part, case in todo:
            raced(case, part.seeds_of(case), runs)
            display.advance(1)
            display.line()
    if arguments.quick:
        write("results-quick", [figure for part in parts for figure in part_figures(part, runs)])
    elif arguments.kept or (shares == 1 and arguments.only is None):
        kept.fold(CONTEST, unused)
        write_kept(Runs(CONTEST, makes=False))


if __name__ == "__main__":
    main()
