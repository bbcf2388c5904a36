"""Do the contest's runs say what its table says? Computed once more from them, by other code.

    python studies/recomputed.py [--quick]

Nothing is shared with ``studies/results.py`` and what it uses: runs are read by pyarrow alone, named and sorted here,
and late reward, area, accuracies and intervals are written anew. Three things are asked.

- **The table**: every measure, and every difference to a rival, in ``contest.json`` and ``along.json`` against what is
  computed here; and whether the rate that seeds were run at is the best that both tuning seeds have seen.
- **Claims**: each difference that README and findings call ahead has an interval above zero, and each that they call a
  tie has zero inside it.
- **Intervals**: how often Student's, and percentiles of a bootstrap, of an interquartile mean as the table once had
  them, hold the truth with five and ten seeds, of 2,000 normal samples.

``--quick``: fewer samples.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import neighbours  # noqa: F401
import numpy as np
import pyarrow.parquet as pq
import scipy.stats
from figures import ROOT, Estimate, Figure, at_least, at_most, write

RESULTS = ROOT / "studies" / "results"
TUNING = (101, 102)
Run = dict[str, Any]
#: Runs by row, "task, horizon steps, baseline, schedule, …" as the table has it; inside by rate and seed.
Rows = dict[str, dict[float, dict[int, Run]]]
#: Rivals' rows by the words of the table.
RIVALS = {
    "the constant rate's": "gradient_weighted, constant",
    "cosine's": "gradient_weighted, cosine",
    "noise_linear's": "gradient_weighted, noise_linear",
    "gradient_weighted's": "gradient_weighted, constant, data.train.size=64",
    "AdamW's": "gradient_weighted, constant, optimizer=adamw",
    "RLOO's": "rloo, constant",
    "RLOO's under noise_linear": "rloo, noise_linear",
    "the prior's": "gradient_weighted, noise_linear, baseline.prior=past",
    "linear's": "gradient_weighted, linear",
    "linear_clipped's": "gradient_weighted, linear_clipped",
    "normalised SGD's": "gradient_weighted, normalised",
    "normalised SGD's with the prior": "gradient_weighted, normalised, baseline.prior=past",
    "snr's": "gradient_weighted, snr, estimator=ema",
}
#: A rate, and what rows under it are compared with.
CLIP = ("linear_clipped", "linear_clipped's")
DEFAULT = "gradient_weighted, noise_linear"
SHORT = ("pocket", "pocket_graded", "pocket_rare")
TASKS = (*SHORT, "pocket_long")
#: What pages say: a row, its rival, the measure, and whether it is ahead ("+"), behind ("-") or tied ("=").
CLAIMS = (
    *(
        (f"{task}, {steps} steps, {DEFAULT}", rival, "late reward", "+")
        for steps in (100, 300)
        for task in SHORT
        for rival in ("the constant rate's", "cosine's")
    ),
    (f"pocket_long, 100 steps, {DEFAULT}", "the constant rate's", "late reward", "+"),
    (f"pocket_long, 100 steps, {DEFAULT}", "cosine's", "late reward", "="),
    *((f"{task}, 100 steps, gradient_weighted, linear", "the constant rate's", "late reward", "+") for task in SHORT),
    *((f"{task}, 100 steps, gradient_weighted, linear", "noise_linear's", "late reward", "-") for task in SHORT),
    *(
        (f"{task}, 100 steps, gradient_weighted, noise", "the constant rate's", "late reward", sign)
        for task, sign in zip(SHORT, "==+", strict=True)
    ),
    *(
        (f"{task}, 100 steps, {DEFAULT}, schedule.power=0.5", "noise_linear's", "late reward", "=")
        for task in ("pocket", "pocket_rare")
    ),
    *(
        (f"{task}, 100 steps, gradient_weighted, linear_clipped", "noise_linear's", "late reward", "=")
        for task in SHORT
    ),
    ("pocket, 100 steps, gradient_weighted, constant_clipped", "noise_linear's", "late reward", "-"),
    *(
        (
            f"pocket, 100 steps, gradient_weighted, snr_clipped{name}estimator={estimator}",
            "noise_linear's",
            "late reward",
            "-",
        )
        for name in (", schedule.", "_linear, schedule.schedule.")
        for estimator in ("plug_in", "ema")
    ),
    *(
        (f"pocket, 100 steps, gradient_weighted, {rate}, baseline.prior=past", rival, "late reward", "+")
        for rate, rival in (("constant", "the constant rate's"), ("linear", "linear's"), CLIP)
    ),
    *(
        (f"pocket, 100 steps, rloo, {rate}", rival, "late reward", sign)
        for (rate, rival), sign in zip((("linear", "linear's"), CLIP), "=-", strict=True)
    ),
    *(
        ("pocket, 100 steps, gradient_weighted, normalised", rival, "late reward", "+")
        for rival in ("noise_linear's", CLIP[1])
    ),
    *(
        ("pocket, 100 steps, gradient_weighted, normalised, baseline.prior=past", rival, "late reward", "+")
        for rival in ("noise_linear's", "normalised SGD's", "the prior's", CLIP[1])
    ),
    (
        "pocket, 100 steps, gradient_weighted, linear_clipped, baseline.prior=past",
        "normalised SGD's with the prior",
        "late reward",
        "-",
    ),
    ("pocket, 100 steps, rloo, normalised", "normalised SGD's", "late reward", "-"),
    (
        "pocket, 100 steps, gradient_weighted, normalised, baseline.prior=past",
        "normalised SGD's of 146 steps",
        "late reward",
        "=",
    ),
    ("pocket_rare, 100 steps, gradient_weighted, normalised", "noise_linear's", "late reward", "+"),
    ("pocket_rare, 100 steps, gradient_weighted, normalised", CLIP[1], "late reward", "="),
    (f"pocket, 100 steps, {DEFAULT}, gradnorm=logit", "noise_linear's", "late reward", "="),
    (f"pocket, 100 steps, {DEFAULT}, gradnorm=logit, baseline.prior=past", "the prior's", "late reward", "="),
    ("pocket, 25 steps, gradient_weighted, constant", "RLOO's", "area", "="),
    ("pocket, 25 steps, none, constant", "RLOO's", "area", "+"),
    ("pocket, 25 steps, none, constant", "the constant rate's", "area", "="),
    ("pocket, 100 steps, rloo, constant", "the constant rate's", "late reward", "="),
    ("pocket, 100 steps, rloo, noise_linear", "noise_linear's", "late reward", "-"),
    ("pocket, 100 steps, opo, noise_linear", "noise_linear's", "late reward", "="),
    ("pocket, 100 steps, opo, noise_linear", "RLOO's under noise_linear", "late reward", "+"),
    ("pocket, 100 steps, none, noise_linear", "noise_linear's", "late reward", "="),
    *(
        (f"{task}, 100 steps, {DEFAULT}, baseline.prior=past", rival, "late reward", "+")
        for task in SHORT
        for rival in ("noise_linear's", "RLOO's under noise_linear")
    ),
    *((f"backward, 100 steps, {DEFAULT}", rival, "late reward", "=") for rival in ("the constant rate's", "cosine's")),
    (f"backward, 100 steps, {DEFAULT}, baseline.prior=past", "noise_linear's", "late reward", "="),
    *(
        ("backward, 100 steps, gradient_weighted, linear_clipped", rival, "late reward", "+")
        for rival in ("noise_linear's", "cosine's")
    ),
    ("pocket, 100 steps, history, constant, data.train.size=64", "gradient_weighted's", "late reward", "="),
    ("pocket, 100 steps, history, constant, data.train.size=64", "gradient_weighted's", "area", "+"),
    ("pocket, 100 steps, gradient_weighted, cosine, optimizer=adamw", "noise_linear's", "late reward", "="),
    ("pocket, 25 steps, gradient_weighted, snr, estimator=ema", "the constant rate's", "late reward", "+"),
    ("pocket, 25 steps, gradient_weighted, snr, estimator=plug_in", "the constant rate's", "late reward", "+"),
    *(
        ("pocket, 25 steps, rloo, snr, estimator=ema, eta0=0.03", "snr's", measure, "-")
        for measure in ("late reward", "area")
    ),
    *(
        (f"pocket, 25 steps, {row}", "noise_linear's", "late reward", "-")
        for row in (
            "gradient_weighted, linear, optimizer=gated_sgd",
            "gradient_weighted, noise_linear, loss=vl_norm",
            "group_mean_std, noise_linear",
            *(f"gradient_weighted, noise_linear, kl=k3, kl.coefficient={beta}" for beta in (0.01, 0.1)),
        )
    ),
    *(
        (f"pocket, 25 steps, gradient_weighted, {row}", "noise_linear's", "late reward", "=")
        for row in (
            "timed",
            *(f"{rate}, optimizer=clipped_adamw" for rate in ("constant", "linear", "linear, warm_up=3", "cosine")),
        )
    ),
    ("pocket, 100 steps, gradient_weighted, snr, estimator=ema", "the constant rate's", "late reward", "="),
    ("pocket, 100 steps, gradient_weighted, snr, estimator=ema", "noise_linear's", "late reward", "="),
)
WORDS = {"+": "> 0", "-": "< 0", "=": "a tie"}


def rows_of(file: str) -> Rows:
    found: Rows = defaultdict(lambda: defaultdict(dict))
    for run in pq.read_table(RESULTS / file).to_pylist(maps_as_pydicts="strict"):
        settings = dict(of.split("=", 1) for of in run["overrides"])
        steps = int(settings.pop("steps"))
        prompts = int(settings.pop("rollout.prompts_per_step", 16))
        group = int(settings.pop("rollout.group_size", 8))
        seed, rate = int(settings.pop("seed")), settings.pop("eta0", None) or settings.pop("schedule.eta0", "nan")
        words = [settings.pop("baseline"), settings.pop("schedule")]
        words += [f"{name.removeprefix('schedule.')}={value}" for name, value in settings.items()]
        words += [f"N = {prompts}", f"G = {group}"] if (prompts, group) != (16, 8) else []
        name = f"{run['task']}, {steps * prompts * group // 128} steps, {', '.join(words)}"
        found[name][float(rate)][seed] = run
    return found


def with_second_rates(rows: Rows) -> Rows:
    """Seeds that a row was run with at another than its tuned rate are a row of their own."""
    found = {name: dict(rates) for name, rates in rows.items()}
    for name, rates in rows.items():
        at = [rate for rate, of in rates.items() if {*of} - {*TUNING}]
        for rate in {*at} - {tuned(rates)} if len(at) > 1 else ():
            found[f"{name}, eta0={rate:g}"] = {rate: rates[rate]}
            found[name][rate] = {seed: run for seed, run in rates[rate].items() if seed in TUNING}
    return found


def tuned(rates: dict[float, dict[int, Run]]) -> float | None:
    """The rate whose late reward both tuning seeds have seen best; None where nothing was tuned."""
    both = {
        rate: sum(measured(of[s], "late reward") for s in TUNING) for rate, of in rates.items() if {*TUNING} <= {*of}
    }
    return max(both, key=both.__getitem__, default=None)


def measured(run: Run, measure: str) -> float:
    """In percent."""
    reward, accuracy = np.array(run["reward"]), [of for _, of in sorted(run["accuracy"].items(), key=last_step)]
    if measure == "late reward":
        return 100 * float(reward[len(reward) - len(reward) // 4 :].mean())
    if measure == "area":
        return 100 * float(reward.mean())
    if measure == "area per token":
        return 100 * float(np.average(reward, weights=run["tokens"]))
    return 100 * accuracy[-1]


def last_step(item: tuple[str, float]) -> int:
    return int(item[0])


def counted(rates: dict[float, dict[int, Run]]) -> dict[int, Run]:
    """Runs of the seeds that are not tuned on: all of one rate."""
    (runs,) = ({s: run for s, run in of.items() if s not in TUNING} for of in rates.values() if {*of} - {*TUNING})
    return runs


def gaps(rows: Rows, name: str, rival: str, measure: str) -> list[float]:
    """Points by which a row is ahead, seed by seed, on the seeds that both have."""
    task, steps, _ = name.split(", ", 2)
    rival, _, longer = rival.partition(" of ")  # so many steps
    steps = longer or steps
    ours, theirs = counted(rows[name]), counted(rows[f"{task}, {steps}, {RIVALS[rival]}"])
    return [measured(ours[s], measure) - measured(theirs[s], measure) for s in sorted({*ours} & {*theirs})]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    found = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    return float(np.mean(values)), float(found.low), float(found.high)


def over_tasks(each: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Of differences by task: the mean of their means, with Welch's interval."""
    errors = [float(scipy.stats.sem(of)) / len(each) for of in each]
    error = math.hypot(*errors)
    freedom = error**4 / sum(of**4 / (len(values) - 1) for of, values in zip(errors, each, strict=True))
    low, high = scipy.stats.t.interval(0.95, freedom, sum(map(np.mean, each)) / len(each), error)
    return (low + high) / 2, float(low), float(high)


def table(rows: Rows) -> Iterator[Figure]:
    """By how much the committed table differs from what is computed here."""
    contest = {of["name"]: of for of in json.loads((RESULTS / "contest.json").read_text())["figures"]}
    measures = ("final accuracy", "late reward", "area", "area per token")
    worst, compared, ratings = 0.0, 0, []
    for title, theirs in contest.items():
        name, _, what = title.partition(": ")
        measure, _, rival = what.partition(", over ")
        if name.startswith("all tasks, "):
            of_task = f"{name}: late reward, over {rival}"  # area per token stands there for all tasks alone
            on = [task for task in TASKS if of_task.replace("all tasks", task) in contest]
            ours = over_tasks([gaps(rows, name.replace("all tasks", task), rival, measure) for task in on])
        elif name not in rows:  # a count
            continue
        elif what == "η₀":
            best = tuned(rows[name])
            ratings.append(math.isclose(best, theirs["value"]) and {*counted(rows[name])} <= {*rows[name][best]})
            continue
        elif measure in measures:
            own = [measured(run, measure) for _, run in sorted(counted(rows[name]).items())]
            ours = interval(gaps(rows, name, rival, measure) if rival else own)
        else:  # costs, second moments
            continue
        worst = max(worst, *(abs(a - theirs[end]) for a, end in zip(ours, ("value", "low", "high"), strict=True)))
        compared += 1
    yield Figure("contest.json: figures with an interval, computed again", compared, "")
    yield at_most("contest.json: largest difference of a value or an end", worst, "points", 1e-9)
    yield Figure("contest.json: rates", len(ratings), "")
    yield at_least("contest.json: of them the best that both tuning seeds have seen", sum(ratings), "", len(ratings))


def claims(rows: Rows) -> Iterator[Figure]:
    for name, rival, measure, sign in CLAIMS:
        middle, low, high = interval(gaps(rows, name, rival, measure))
        holds = {"+": low > 0, "-": high < 0, "=": low < 0 < high}[sign]
        yield Estimate(f"{name}: {measure}, over {rival}", middle, "points", WORDS[sign], holds, low=low, high=high)
    for steps in (100, 300):
        for rival in ("the constant rate's", "cosine's"):
            ahead = [gaps(rows, f"{task}, {steps} steps, {DEFAULT}", rival, "late reward") for task in SHORT]
            least = min(sum(gap > 0 for gap in of) for of in ahead)
            yield at_least(f"{steps} steps: seeds of ten ahead of {rival}, on the worst of three tasks", least, "", 10)


def along(rows: Rows, earlier: Rows) -> Iterator[Figure]:
    """What ``along.json`` has, computed again; the target is its value."""
    committed = {of["name"]: of["value"] for of in json.loads((RESULTS / "along.json").read_text())["figures"]}
    found: dict[str, float] = {}
    squares = {
        baseline: np.array([run["mean_square"] for _, run in sorted(counted(rows[name]).items())])
        for baseline, name in (
            ("gradient_weighted", "pocket, 100 steps, gradient_weighted, constant"),
            ("rloo", "pocket, 100 steps, rloo, constant"),
        )
    }
    for baseline, square in squares.items():
        norm = square[:5, 50:100] ** 0.5
        title = "pocket, steps 50 to 99, norm of the gradient,"
        found[f"{title} mean: {baseline}"] = norm.mean()
        found[f"{title} spread: {baseline}"] = norm.std(axis=1, ddof=1).mean()
    for task in SHORT:
        for steps in (100, 300):
            name = f"{task}, {steps} steps, {DEFAULT}"
            runs = counted(rows[name]).values()
            start = [sum([square for square in run["mean_square"] if square][:5]) / 5 for run in runs]
            found[f"{name}: E₀, largest of 10 seeds"] = max(start) / min(start)
            for measure in ("area", "late reward"):
                reached = [measured(run, measure) for run in runs]
                found[f"{name}: log E₀ and {measure}"] = scipy.stats.pearsonr(np.log(start), reached).statistic
    for name in (
        f"pocket, 100 steps, {DEFAULT}",
        *(f"pocket, {n} steps, gradient_weighted, snr, estimator=ema" for n in (25, 100)),
    ):
        each = []
        for seed in range(1, 6):
            run = counted(rows[name])[seed]
            pairs = zip(*(zip(run[of], run[of][1:], strict=False) for of in ("lr", "mean_square")), strict=True)
            logs = [(math.log(b / a), math.log(d / c)) for (a, b), (c, d) in pairs if min(a, b, c, d) > 0]
            each.append(scipy.stats.pearsonr(*zip(*logs, strict=True)).statistic)
        found[f"{name}: changes of log η and log ‖ĝ‖²"] = np.mean(each)
    for steps in ((0, 0), (2, 5)):
        name = f"pocket_graded, 100 steps, {DEFAULT}"
        rewards = [run["reward"][steps[0] : steps[1] + 1] for run in counted(rows[name]).values()]
        found[f"{name}: reward of steps {steps[0]} to {steps[1]}"] = 100 * float(np.mean(rewards))
    plain = earlier["pocket, 24 steps, rloo, snr, estimator=ema"][0.03]
    for baseline in ("gradient_weighted", "none"):
        ours = earlier[f"pocket, 24 steps, {baseline}, snr, estimator=ema"][0.03]
        differences = [measured(ours[s], "area") - measured(plain[s], "area") for s in range(1, 11)]
        found[f"pocket, 24 steps, snr, {baseline}: area, over rloo's"] = float(np.mean(differences))
    for name, value in found.items():
        there = committed[name]
        yield Figure(f"along.json: {name}", float(value), "", f"{there:.4g}", math.isclose(value, there, rel_tol=1e-6))


def coverage(samples: int) -> Iterator[Figure]:
    """Of intervals of normal samples, whose mean is 0."""
    random = np.random.default_rng(1)
    for seeds in (5, 10):
        drawn = random.standard_normal((samples, seeds))
        half = scipy.stats.t.ppf(0.975, seeds - 1) * scipy.stats.sem(drawn, axis=1)
        yield Figure(
            f"{seeds} seeds: Student's interval holds the truth", 100 * np.mean(np.abs(drawn.mean(1)) < half), "%"
        )
        held = 0
        for values in drawn:
            again = np.sort(values[random.integers(0, seeds, (1000, seeds))])
            middle = again[:, seeds // 4 : seeds - seeds // 4].mean(1)
            low, high = np.quantile(middle, [0.025, 0.975])
            held += low < 0 < high
        yield Figure(f"{seeds} seeds: a bootstrap's of the interquartile mean does", 100 * held / samples, "%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows = with_second_rates(rows_of("contest.parquet"))
    figures = [*table(rows), *claims(rows), *along(rows, rows_of("runs.parquet")), *coverage(100 if quick else 2000)]
    write("recomputed-quick" if quick else "recomputed", figures)


if __name__ == "__main__":
    main()
