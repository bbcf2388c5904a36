"""Is the doctor's advice worth following? The (N, G, η₀) that it leads to, beside the best of a grid at equal samples.

    python studies/advice.py [--only TASK] [--share K/N] [--kept] [--quick]

Every run has 64 · 128 responses of a constant rate and the gradient-weighted baseline. It begins with few prompts in
large groups and a small rate, which nobody has tuned. The doctor looks at a run's statistics; what its first finding
about N, G or η₀ says is changed, and the run is made anew, until there is none or the settings have been tried: at most
six runs. The grid: as many responses a step in four shapes, four rates a factor of two apart. Its cells run with one
seed that is not used again; the best three with the five seeds of the advice, of which the best in the mean is the
rival. The measure is late reward, the mean over the last quarter of the steps; differences are taken seed by seed, with
Student's 95 % interval. The rival is chosen by the seeds that judge it, which favours it a little.

Statistics of runs are kept in ``.cache/advice``; a second call goes on from there. ``--kept`` makes none, and writes
the tasks that are complete. ``--quick``: a short run of each kind.
"""

import argparse
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import neighbours  # noqa: F401
from comparisons import student
from figures import ROOT, Estimate, Figure, write
from training import TASKS, observed

from doctor import BASE, Kept, kept
from oblr.doctor.diagnosis import TESTS
from oblr.doctor.findings import rewards
from oblr.statistics.log import StepRecord

CACHE = ROOT / ".cache" / "advice"
SEEDS, TUNING = (1, 2, 3, 4, 5), 101
#: Full steps, and responses of each.
HORIZON, STEP = 64, 128
#: Runs that following the advice may take.
ROUNDS = 6
#: Cells of the grid that run with all seeds.
BEST = 3
SETTINGS = {"rollout.prompts_per_step": "prompts", "rollout.group_size": "group", "eta0": "rate"}


@dataclass(frozen=True)
class Place:
    """N, G and η₀."""

    prompts: int
    group: int
    rate: float

    @property
    def name(self) -> str:
        return f"N={self.prompts}, G={self.group}, η₀={self.rate:g}"

    def advised(self, steps: Sequence[StepRecord]) -> "Place":
        """What the first finding that is about these makes of them, whatever else is found; these where none is."""
        for finding in filter(None, (test(steps) for test in TESTS)):
            changes = [part.split("=", 1) for part in finding.fix.split() if part.split("=")[0] in SETTINGS]
            if changes and len(changes) == len(finding.fix.split()):
                named = {SETTINGS[name]: float(value) for name, value in changes}
                whole = {name: value if name == "rate" else int(value) for name, value in named.items()}
                return replace(self, **whole)
        return self


START = Place(4, 32, 0.0025)


def grid(rates: Sequence[float]) -> list[Place]:
    """As many responses a step, in four shapes."""
    return [Place(prompts, STEP // prompts, rate) for prompts, rate in itertools.product((32, 16, 8, 4), rates)]


GRID = grid((0.005, 0.01, 0.02, 0.04))


@dataclass(frozen=True)
class Task(ABC):
    """Runs of a task.

    Attributes:
        start: where the advice begins.
    """

    name: str
    start: Place

    @abstractmethod
    def run(self, place: Place, seed: int) -> list[StepRecord]:
        """The steps of a run."""

    def late(self, place: Place, seed: int) -> float:
        """Mean reward over the last quarter of a run's steps."""
        return late([fmean(rewards([step])) for step in self.run(place, seed)])

    def followed(self, seed: int) -> list[Place]:
        """The settings that the advice leads through, the last of which is kept."""
        places = [self.start]
        while len(places) < ROUNDS:
            advised = places[-1].advised(self.run(places[-1], seed))
            if advised in places:
                break
            places.append(advised)
        self.run(places[-1], seed)
        return places

    def best(self, seeds: Sequence[int], grid: Sequence[Place]) -> Place:
        favourites = sorted(grid, key=lambda place: -self.late(place, TUNING))[:BEST]
        return max(favourites, key=lambda place: fmean(self.late(place, seed) for seed in seeds))

    def figures(self, seeds: Sequence[int], grid: Sequence[Place]) -> Iterator[Figure]:
        ways, rival = {seed: self.followed(seed) for seed in seeds}, self.best(seeds, grid)
        ends = [100 * self.late(ways[seed][-1], seed) for seed in seeds]
        rivals = [100 * self.late(rival, seed) for seed in seeds]
        begun = [100 * self.late(self.start, seed) for seed in seeds]
        for title, values in (("the start", begun), ("advised", ends), (f"best of the grid, {rival.name}", rivals)):
            middle, low, high = student(values)
            yield Estimate(f"{self.name}: {title}: late reward", middle, "%", low=low, high=high)
        middle, low, high = student([a - b for a, b in zip(ends, rivals, strict=True)])
        title = f"{self.name}: advised, over the best of the grid"
        yield Estimate(title, middle, "points", "≥ -1", middle >= -1, low=low, high=high)
        yield Figure(f"{self.name}: runs on the way", fmean(len(way) for way in ways.values()), "")


@dataclass(frozen=True)
class PocketTask(Task):
    """Runs of a task of experiment=pocket, which are kept.

    Attributes:
        horizon: full steps of each run.
        makes: whether runs that are missing are made.
    """

    folder: Path
    horizon: int
    makes: bool = True

    def run(self, place: Place, seed: int) -> list[StepRecord]:
        """Raises FileNotFoundError for a run that is missing where none are made."""
        path = self.folder / f"{self.name}-{place.prompts}-{place.group}-{place.rate:g}-{seed}.jsonl"
        if not self.makes and not path.exists():
            raise FileNotFoundError(path)
        count = max(self.horizon * STEP // (place.prompts * place.group), 1)
        size = f"rollout.prompts_per_step={place.prompts}", f"rollout.group_size={place.group}"
        rate = "schedule=constant", "baseline=gradient_weighted", f"eta0={place.rate:g}"
        overrides = [*BASE, *size, *rate, f"steps={count}", f"seed={seed}"]
        return kept(path, lambda part: observed(overrides, Kept(part), self.name))


def late(means: Sequence[float]) -> float:
    """The mean of the last quarter of a run's mean rewards."""
    return fmean(means[-max(len(means) // 4, 1) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--share", default="1/1", metavar="K/N", help="of the runs that do not need others")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if asked.quick:
        folder = CACHE.with_name("advice-quick")
        for file in folder.glob("*"):
            file.unlink()
        small = Place(2, 4, 0.01)
        task = PocketTask("pocket", small, folder, 1)
        advised = small.advised(task.run(small, 1))
        return write("advice-quick", [Figure("late reward", task.late(small, 1), ""), Figure(advised.name, 0, "")])
    tasks = [PocketTask(name, START, CACHE, HORIZON, not asked.kept) for name in TASKS if asked.only in (None, name)]
    share, shares = map(int, asked.share.split("/"))
    if shares > 1:
        for number, (task, seed) in enumerate(itertools.product(tasks, SEEDS)):
            if number % shares == share - 1:
                task.followed(seed)
        for number, (task, place) in enumerate(itertools.product(tasks, GRID)):
            if number % shares == share - 1:
                task.run(place, TUNING)
        return None
    figures = list[Figure]()
    for task in tasks:
        try:
            figures += task.figures(SEEDS, GRID)
        except FileNotFoundError:
            print(f"{task.name}: not complete")
    return write("advice", figures)


if __name__ == "__main__":
    main()
