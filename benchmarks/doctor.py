"""Whether the doctor finds what ails a run: twelve faults planted in runs of experiment=pocket, beside healthy ones.

    python benchmarks/doctor.py [--quick] [--seeds 10] [--healthy 20] [--jobs 1] [--kept] [--only FAULT ...]

Each run keeps its statistics in .cache/doctor and is not repeated; ``--kept`` looks at those that are there and trains
none; ``--only`` measures these alone, and what the result says of others stays there. A fault is found where the
doctor's first finding is the one that belongs to it. Beside it is a plain threshold: whether ``‖ĝ‖`` ever exceeds the
mean of the steps before by three standard deviations. It names no cause, so it is given every run in which it is
crossed. rl-doctor 0.2 is not on the package index that this was measured with.
"""

import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

import torch
from figures import ROOT, Estimate, Figure, at_least, at_most, parser, write
from lightning import Trainer
from training import observed

from callbacks.doctor import Doctor
from callbacks.grad_stats import GradStats
from oblr.batch.types import ResponseTokens, Rollout, RolloutBatch, StepStatistics
from oblr.doctor.diagnosis import diagnose
from oblr.doctor.findings import Finding
from oblr.doctor.rates import left_at_the_end
from oblr.policy.step import PolicyModule
from oblr.rollout.datamodule import RolloutDataModule
from oblr.statistics.log import StepRecord, append, read

STEPS = 32
#: Runs of a fault without which no target is held against them; of healthy ones twice as many.
JUDGED = 10
#: Seeds below it are those of runs by which the doctor's bounds were chosen; of a fault may be more.
FRESH = 3
#: Of all runs.
BASE = (
    *("rollout.engine=hf", "rollout.reward_pool.trust=true"),
    *("baseline=gradient_weighted", "schedule=noise_linear", "eta0=0.03"),  # under which the runs were made
)

Change = Callable[[PolicyModule, RolloutDataModule, int], None]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a run, and the finding that should come first.

    Attributes:
        finding: its name.
        overrides: of the run's settings.
        change: what is altered before the run begins, given its seed.
        culprit: whether a finding names the response at fault, if there is one, given the seed and the steps.
        fresh: first seed whose run no rule was made by.
    """

    finding: str
    overrides: tuple[str, ...] = ()
    change: Change = lambda policy, data, seed: None
    culprit: Callable[[Finding, int, Sequence[StepRecord]], bool] | None = None
    fresh: int = FRESH


# --- what is planted ------------------------------------------------------------------------------------------------


def batches(alter: Callable[[list[Rollout], int, int, int], list[Rollout]]) -> Change:
    """Alter the rollouts of every step: given them, G, the step and the seed."""

    def change(policy: PolicyModule, data: RolloutDataModule, seed: int) -> None:
        step = policy.training_step

        def altered(batch: RolloutBatch, *others: int) -> dict[str, StepStatistics]:
            rollouts = alter(batch.rollouts, batch.group_size, policy.current_epoch + 1, seed)
            return step(replace(batch, rollouts=rollouts), *others or (0,))

        policy.training_step = altered  # type: ignore[method-assign]

    return change


def single(seed: int) -> tuple[int, int]:
    """Step and place of the one response that something happens to."""
    draw = random.Random(seed)
    return draw.randrange(STEPS // 2, STEPS - 2), draw.randrange(128)


def is_single(finding: Finding, seed: int, steps: Sequence[StepRecord]) -> bool:
    return (finding.step, finding.response) == single(seed)


def hundred(rollouts: list[Rollout], size: int, step: int, seed: int) -> list[Rollout]:
    at, place = single(seed)
    return [replace(one, reward=100.0) if (step, i) == (at, place) else one for i, one in enumerate(rollouts)]


def repeated(rollouts: list[Rollout], size: int, step: int, seed: int) -> list[Rollout]:
    """One response of a step, the least likely, takes the place of all others to its prompt but one."""
    at, _ = single(seed)
    if step != at:
        return rollouts
    first = unlikely(rollouts) // size * size
    others = [i for i in range(first, first + size) if i != unlikely(rollouts)][: size - 2]
    return [rollouts[unlikely(rollouts)] if i in others else one for i, one in enumerate(rollouts)]


def unlikely(rollouts: Sequence[Rollout]) -> int:
    return min(range(len(rollouts)), key=lambda i: sum(rollouts[i].completion.logprobs))


def paid_for_nothing(rollouts: list[Rollout], size: int, step: int, seed: int) -> list[Rollout]:
    """Whatever comes without any working is paid."""
    return [replace(one, reward=1.0) if one.text.startswith("Answer:") else one for one in rollouts]


def hopeless(rollouts: list[Rollout], size: int, step: int, seed: int) -> list[Rollout]:
    """Three in four problems pay nothing."""
    return [replace(one, reward=0.0) if sum(one.prompt_ids) % 4 else one for one in rollouts]


def coarse(policy: PolicyModule, data: RolloutDataModule, seed: int) -> None:
    """Importance ratios are rounded to bfloat16."""
    update = policy.update
    fine = ResponseTokens.__dict__["sequence_logs"]

    def rounded(tokens: ResponseTokens) -> torch.Tensor:
        return tokens.sums(tokens.logs).exp().bfloat16().double().log()

    def altered(*given, **named):
        found = cached_property(rounded)
        found.__set_name__(ResponseTokens, "sequence_logs")
        ResponseTokens.sequence_logs = found  # type: ignore[method-assign]
        try:
            return update(*given, **named)
        finally:
            ResponseTokens.sequence_logs = fine

    policy.update = altered  # type: ignore[method-assign]


def stale(policy: PolicyModule, data: RolloutDataModule, seed: int) -> None:
    """The engine gets new weights at every eighth step alone."""
    kept: list[tuple[str, torch.Tensor]] = []

    def weights():
        if not kept or policy.current_epoch % 8 == 0:
            kept[:] = [(name, tensor.detach().clone()) for name, tensor in policy.weights()]
        return iter(kept)

    data.weights = weights


def scaled(policy: PolicyModule, data: RolloutDataModule, seed: int) -> None:
    """A layer's gradient is 30 times what it should be."""
    moments = policy.moments

    def altered(squares: torch.Tensor):
        layers = [p for p in policy.scorer.lm.model.layers[1].mlp.parameters() if p.grad is not None]
        for p in layers:
            p.grad.mul_(30)
        return moments(squares)

    policy.moments = altered  # type: ignore[method-assign]


LOOSE = ("policy.logprob_gap_mean=1e6", "policy.logprob_gap_p99=1e6")
FAULTS = {
    "a duplicated response": Fault("duplicates", change=batches(repeated)),
    "one reward of 100": Fault("odd_reward", change=batches(hundred), culprit=is_single),
    "a reward for the empty answer": Fault("paid_for_nothing", change=batches(paid_for_nothing)),
    "ratio in bfloat16": Fault("coarse_ratio", ("policy.updates_per_batch=2",), coarse),
    "η × 8": Fault("rate_large", ("eta0=0.24",)),
    "η ÷ 30": Fault("rate_small", ("eta0=0.001",)),
    # as many responses as in other runs
    "N = 2": Fault("few_prompts", ("rollout.prompts_per_step=2", f"steps={8 * STEPS}"), fresh=13),
    "G = 64 with N = 2": Fault("large_groups", ("rollout.prompts_per_step=2", "rollout.group_size=64")),
    "a pooled baseline": Fault("pooled_baseline", ("baseline=batch_mean",)),
    "dead groups": Fault("dead_groups", change=batches(hopeless)),
    "stale engine": Fault("stale_engine", LOOSE, stale),
    "a layer's gradient scaled": Fault("foreign_gradient", change=scaled),
}
HEALTHY = "healthy"


class Kept(Doctor):
    """Writes the statistics of every step."""

    def __init__(self, path: Path):
        super().__init__(every=STEPS)
        self.path, self.stats = path, GradStats(4)

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        self.stats.on_rollouts(trainer, policy, batch)

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        self.stats.on_step(trainer, policy, stats)
        super().on_step(trainer, policy, stats)
        append(self.path, self.steps[-1])


def path_of(name: str, seed: int, folder: Path) -> Path:
    return folder / f"{name.replace(' ', '_')}-{seed}.jsonl"


def steps_of(name: str, seed: int, folder: Path, count: int) -> list[StepRecord]:
    """Of the run of so many steps with this fault, which is trained if it has not been."""
    fault = FAULTS.get(name, Fault(""))
    overrides = [*BASE, f"steps={count}", f"seed={seed}", *fault.overrides]

    def train(part: Path) -> None:
        observed(overrides, Kept(part), "pocket", lambda policy, data: fault.change(policy, data, seed))

    return kept(path_of(name, seed, folder), train)


def kept(path: Path, train: Callable[[Path], None]) -> list[StepRecord]:
    """The steps of a run, which ``train`` writes to a file it is given if they are not at ``path``.

    Raises:
        ValueError: a file that lacks steps.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part, start = path.with_suffix(f".{os.getpid()}"), time.time()  # another process may make the same run
        part.unlink(missing_ok=True)
        train(part)
        part.rename(path)
        print(f"{path.stem}: {time.time() - start:.0f} s", flush=True)
    with path.open(encoding="utf-8") as lines:
        steps = list(read(lines))
    if [step.step for step in steps] != [*range(1, len(steps) + 1)]:
        raise ValueError(f"{path} lacks steps: delete it, and it is made anew")
    return steps


def crossed(steps: Sequence[StepRecord]) -> bool:
    """Whether ‖ĝ‖ ever exceeds mean + 3 standard deviations of the steps before, at least eight."""
    lengths = [step.gradient_square**0.5 for step in steps]
    return any(lengths[i] > fmean(lengths[:i]) + 3 * stdev(lengths[:i]) for i in range(8, len(lengths)))


def command(
    doc: str | None,
    result: str,
    faults: Mapping[str, Any],
    steps_of: Callable[[str, int, Path, int], list[StepRecord]],
    quick: Mapping[str, Sequence[int]],
    more: Callable[[], Sequence[Figure]] = list,
    told: Callable[[Finding], bool] = lambda finding: True,
) -> None:
    """What is typed: train the runs of these faults that are missing, and examine all.

    Args:
        quick: runs of the short form, by fault and seed.
        more: other figures.
        told: whether who has such runs is told of a finding.
    """
    options = parser(doc)
    options.add_argument("--seeds", type=int, default=10, help="runs with each fault")
    options.add_argument("--healthy", type=int, default=20, help="runs without any")
    options.add_argument("--kept", action="store_true", help="train nothing")
    options.add_argument("--jobs", type=int, default=1, help="runs at once, each on a core")
    options.add_argument("--only", nargs="+", choices=[*faults, HEALTHY], help="these, beside what has been measured")
    asked = options.parse_args()
    if asked.quick:
        with tempfile.TemporaryDirectory() as name:
            short = partial(steps_of, folder=Path(name), count=6)
            return examine(f"{result}-quick", quick, faults, short, more(), told)
    folder = ROOT / ".cache" / result
    wanted = dict.fromkeys(faults, asked.seeds) | {HEALTHY: asked.healthy}
    runs = dict[str, Sequence[int]]()
    for name, many in wanted.items():
        if not asked.only or name in asked.only:
            first = faults[name].fresh if name in faults else FRESH
            seeds = range(first, first + many)
            runs[name] = [seed for seed in seeds if not asked.kept or path_of(name, seed, folder).exists()]
    every = partial(steps_of, folder=folder, count=STEPS)
    if asked.jobs > 1:
        with ProcessPoolExecutor(asked.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            made = [pool.submit(every, name, seed) for name, seeds in runs.items() for seed in seeds]
            for one in made:
                one.result()
    return examine(result, runs, faults, every, more(), told, keep=bool(asked.only))


@dataclass(frozen=True)
class Seen:
    """What the doctor finds in a run, and whether that is right: first what belongs to its fault, and the culprit."""

    run: str
    seed: int
    findings: list[str]
    right: bool
    culprit: bool | None
    crossed: bool

    @classmethod
    def of(cls, run: str, seed: int, fault: Any, steps: Sequence[StepRecord], told: Callable[[Finding], bool]) -> Self:
        """Of a run with a ``fault``, or None."""
        findings = list(filter(told, diagnose(steps)))
        right = fault is not None and bool(findings) and findings[0].name == fault.finding
        culprit = None
        if fault is not None and fault.culprit is not None:
            culprit = bool(findings) and fault.culprit(findings[0], seed, steps)
        return cls(run, seed, [one.name for one in findings], right, culprit, crossed(steps))


def of_runs(name: str, seen: Sequence[Seen]) -> Iterator[Figure]:
    """The figures of all runs with this fault, or without any; too few have no target."""
    count = len(seen)
    if name == HEALTHY:
        false = f"{name}: findings", sum(len(one.findings) for one in seen), f"in {count} runs"
        yield at_most(*false, count / 20) if count >= 2 * JUDGED else Figure(*false)
    else:
        yield share(f"{name}: right finding first", [one.right for one in seen], 0.95)
    yield Figure(f"{name}: threshold on ‖ĝ‖ crossed", fmean(one.crossed for one in seen), f"of {count} runs")


def share(name: str, held: Sequence[bool], target: float) -> Figure:
    """In how many runs something held, which is judged where they are enough."""
    of = name, fmean(held), f"of {len(held)} runs"
    return at_least(*of, target) if len(held) >= JUDGED else Figure(*of)


def examine(
    result: str,
    runs: Mapping[str, Sequence[int]],
    faults: Mapping[str, Any],
    steps_of: Callable[[str, int], list[StepRecord]],
    more: Sequence[Figure],
    told: Callable[[Finding], bool],
    keep: bool = False,
) -> None:
    """Write what the doctor finds in the runs of these faults and seeds, and ``more``; see :func:`command`.

    Args:
        keep: also what the result says of other faults.
    """
    figures, every = list[Figure](more), list[Seen]()
    for name, seeds in runs.items():
        steps = {seed: steps_of(name, seed) for seed in seeds}
        seen = [Seen.of(name, seed, faults.get(name), of, told) for seed, of in steps.items()]
        figures += of_runs(name, seen) if seen else ()
        left = left_at_the_end([step for of in steps.values() for step in of])
        if math.isfinite(left.value):
            called = f"{name}: left of the slope where updates end"
            figures.append(Estimate(called, left.value, "of what it was", low=left.low, high=left.high))
        every += seen
    if culprits := [one.culprit for one in every if one.culprit is not None]:
        figures.append(share("culprit named right", culprits, 0.99))
    table = [{"run": one.run, "seed": one.seed, "findings": one.findings} for one in every]
    if keep:
        earlier = json.loads((ROOT / "benchmarks" / "results" / f"{result}.json").read_text(encoding="utf-8"))
        table = [row for row in earlier["runs"] if row["run"] not in runs] + table
    write(result, figures, keep, runs=table)


if __name__ == "__main__":
    command(__doc__, "doctor", FAULTS, steps_of, {"η ÷ 30": [1], HEALTHY: [1]})
