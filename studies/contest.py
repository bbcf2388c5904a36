"""A fair contest: every row's learning rate is tuned where the row is judged, and its runs are kept."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kept
import neighbours  # noqa: F401
from figures import ROOT
from training import Record, composed, train

from oblr.run.provenance import revision

#: Prompts of a full step, and responses to each. A smaller step is one of more: rows are judged at equal numbers of
#: responses.
FULL, GROUP = 16, 8
TUNING_SEEDS = (101, 102)
#: Steps of a horizon over which evaluations would take most of the time: there they are at the ends alone.
SHORTEST = 25


@dataclass(frozen=True)
class Row:
    """What is compared: an algorithm as overrides of a task's experiment.

    Attributes:
        rate: where the search for its ``eta0`` begins; None where there is nothing to tune.
        prompts, group: N and G.
    """

    name: str
    overrides: tuple[str, ...]
    rate: float | None = 0.01
    prompts: int = FULL
    group: int = GROUP


@dataclass(frozen=True)
class Case:
    """A row on a task, over a horizon of so many full steps."""

    task: str
    row: Row
    horizon: int

    @property
    def name(self) -> str:
        return f"{self.task}, {self.horizon} steps, {self.row.name}"

    @property
    def steps(self) -> int:
        return self.horizon * FULL * GROUP // (self.row.prompts * self.row.group)

    def overrides(self, rate: float | None, seed: int) -> tuple[str, ...]:
        chosen = () if rate is None else (f"eta0={rate:g}",)
        groups = () if self.row.group == GROUP else (f"rollout.group_size={self.row.group}",)
        size = (f"rollout.prompts_per_step={self.row.prompts}", *groups, f"steps={self.steps}")
        return (*self.row.overrides, *chosen, *size, f"seed={seed}")


class MissingRunError(LookupError):
    """A run that has not been made yet."""


@dataclass
class Runs:
    """Runs by task and overrides, made where they are missing and kept; a second call goes on from there.

    Attributes:
        path: a table of :mod:`kept`.
        everywhere: overrides of every run.
        makes: whether those that are missing are made; else asking for one raises :class:`MissingRunError`.

    Raises:
        ValueError: of a run whose task has groups of another size than the row says.
    """

    path: Path
    tuning_seeds: Sequence[int] = TUNING_SEEDS
    everywhere: tuple[str, ...] = ()
    makes: bool = True

    def __post_init__(self) -> None:
        self.known: dict[tuple[str, ...], Record] = {}
        self.take(kept.read(self.path))

    def take(self, runs: Iterable[dict[str, Any]]) -> None:
        for run in runs:
            self.known[run["task"], *run["overrides"]] = Record(**run["record"])

    def __call__(self, case: Case, rate: float | None, seed: int) -> Record:
        overrides = (*case.overrides(rate, seed), *self.everywhere)
        key = (case.task, *overrides)
        if key not in self.known:
            self.take(kept.added(self.path))  # by other processes too
        if key not in self.known:
            if not self.makes:
                raise MissingRunError(" ".join(key))
            if (group := composed(overrides, case.task).rollout.group_size) != case.row.group:
                raise ValueError(f"{case.name}: runs would have groups of {group}, and the row says {case.row.group}")
            quarter = max(case.steps // 4, 1)
            every = case.steps if case.horizon <= SHORTEST else quarter
            record = train(overrides, case.task, every, quarter)
            run = {"task": case.task, "overrides": overrides, "revision": revision(ROOT), "record": asdict(record)}
            kept.add(self.path, run)
            self.known[key] = record
            print(f"{len(self.known)} runs  {' '.join(key)}  {final(record):.1%}", flush=True)
        return self.known[key]

    def score(self, case: Case, rate: float | None, seeds: int | None = None) -> float:
        """Late reward at a rate, a mean over the first tuning seeds or all of them."""
        return statistics.mean(late(self(case, rate, seed)) for seed in self.tuning_seeds[:seeds])

    def tuned(self, case: Case) -> float | None:
        """The rate with the highest late reward, a mean over the tuning seeds.

        A race: rates go by factors of two; on the first seed all are run, on the others the best two. The range grows
        until the winner lies inside it.
        """
        if case.row.rate is None:
            return None

        rates = [case.row.rate / 2, case.row.rate, case.row.rate * 2]
        while True:
            # of equals, those that the search began with
            rates.sort(key=lambda rate: abs(math.log(rate / case.row.rate)))
            favourites = sorted(rates, key=lambda rate: -self.score(case, rate, 1))[:2]
            best = max(favourites, key=lambda rate: self.score(case, rate))
            if min(rates) < best < max(rates):
                return best
            rates.append(best / 2 if best == min(rates) else best * 2)

    def reached(self, case: Case) -> float:
        """Late reward at the tuned rate, a mean over the tuning seeds."""
        return self.score(case, self.tuned(case))

    def of(self, case: Case, seeds: Sequence[int]) -> list[Record]:
        """The runs with the tuned rate, by seed."""
        rate = self.tuned(case)
        return [self(case, rate, seed) for seed in seeds]


def final(record: Record) -> float:
    """Held-out accuracy after the last step."""
    return list(record.accuracy.values())[-1]


def last_quarter(values: Sequence[float]) -> float:
    """Their mean over the last quarter of the training steps."""
    return statistics.mean(values[-max(len(values) // 4, 1) :])


def late(record: Record) -> float:
    """Mean reward over the last quarter of the training steps, whose problems are never the same."""
    return last_quarter(record.reward)


def area(record: Record) -> float:
    """Mean reward of all training steps: the mean of the learning curve."""
    return statistics.mean(record.reward)


def area_per_token(record: Record) -> float:
    """Mean reward of the tokens that were sampled: the mean of the learning curve over tokens in place of steps."""
    return sum(r * t for r, t in zip(record.reward, record.tokens, strict=True)) / sum(record.tokens)
