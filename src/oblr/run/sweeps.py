"""A sweep: runs that differ in some overrides, how far each of them is, and the table of what they found."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from oblr.errors import SettingError
from oblr.metrics.aggregate import Interval, interquartile_mean
from oblr.run.disk import write_whole
from oblr.run.provenance import FINISHED
from oblr.run.resumed import PATHS

#: Varies within a configuration: tables are over seeds.
SEED = "seed"
#: Of the table: title → metric of the finished run, a share.
COLUMNS = {
    "final accuracy, %": "eval/sampled_accuracy",
    "area, %": "eval/sampled_area",
    "greedy accuracy, %": "eval/greedy_accuracy",
}
#: The same where rewards are others than 0 and 1 in any of the runs.
REWARDS = {
    "final mean reward": "eval/sampled_reward",
    "area": "eval/sampled_area",
    "greedy mean reward": "eval/greedy_reward",
}


@dataclass(frozen=True)
class Task:
    """One run of a sweep.

    Attributes:
        number: its place in the sweep, from 0; the index of a SLURM array task.
        overrides: the whole list that ``train.py`` is given.
        varied: those that are not the same in all tasks, name → value.
        folder: of the run.
        config: the composed configuration.
    """

    number: int
    overrides: tuple[str, ...]
    varied: dict[str, str]
    folder: Path
    config: dict[str, Any]

    def __str__(self) -> str:
        return f"task {self.number}: " + " ".join(f"{name}={value}" for name, value in self.varied.items())

    @property
    def finished(self) -> bool:
        return (self.folder / FINISHED).exists()

    @property
    def status(self) -> str:
        if self.finished:
            return "finished"
        return "unfinished" if (self.folder / "run.json").exists() else "not started"


def varied(lists: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Of each list of overrides those whose values are not the same in all of them.

    Raises:
        SettingError: there are none.
    """
    named = [{name: value for name, _, value in (o.partition("=") for o in overrides)} for overrides in lists]
    names = [name for name in named[0] if len({own[name] for own in named}) > 1]
    if not names:
        raise SettingError(
            "hydra.sweeper.params",
            "nothing is swept",
            "choose an experiment that sweeps, such as experiment=sweep, or give several values: seed=1,2,3",
        )
    return [{name: own[name] for name in names} for own in named]


def folder_name(own: dict[str, str], groups: Sequence[str]) -> str:
    """``rloo-snr-seed1``: choices of configuration groups by their value, other settings by name and value."""
    words = [value if name in groups else name.rpartition(".")[2].lstrip("+~") + value for name, value in own.items()]
    return re.sub(r"[^\w.+-]+", "_", "-".join(words))


def check_folders(tasks: Sequence[Task]) -> None:
    """Whether every task has a folder of its own, and what lies there already is that task's run.

    Raises:
        SettingError: two tasks share a folder, or a folder holds a run with other settings.
    """
    owners: dict[Path, Task] = {}
    for task in tasks:
        if (other := owners.setdefault(task.folder, task)) is not task:
            raise SettingError(
                "paths.output_dir",
                f"tasks {other.number} and {task.number} would share {task.folder}",
                "name in it all that is swept, or leave it out",
            )
        if task.finished or list((task.folder / "checkpoints").glob("*.ckpt")):
            recorded = yaml.safe_load((task.folder / "config.yaml").read_text())
            if others := differences(recorded, task.config):
                raise SettingError(
                    "name",
                    f"{task.folder} holds a run with other settings: {', '.join(others)}",
                    "give this sweep another name",
                )


def differences(recorded: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Settings that make another run of it: ``steps=2 there, 3 here``."""
    there, here = flat(recorded), flat(wanted)
    return [
        f"{name}={there.get(name)} there, {here.get(name)} here"
        for name in there | here
        if there.get(name) != here.get(name) and name.partition(".")[0] not in PATHS
    ]


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """A configuration's settings by their paths."""
    if not isinstance(node, dict):
        return {prefix.rstrip("."): node}
    return {name: value for key, child in node.items() for name, value in flat(child, f"{prefix}{key}.").items()}


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A configuration over its seeds.

    Attributes:
        varied: what makes it this configuration, name → value.
        tasks, finished: how many runs it has, and how many of them are finished.
        columns: the interquartile means over the finished ones, by the table's titles.
    """

    varied: dict[str, str]
    tasks: int
    finished: int
    columns: dict[str, Interval]


def outcomes(tasks: Sequence[Task]) -> dict[int, dict[str, float]]:
    """The metrics of the finished tasks, by their numbers."""
    return {task.number: json.loads((task.folder / FINISHED).read_text())["metrics"] for task in tasks if task.finished}


def graded(runs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a held-out reward in any of these runs was neither 0 nor 1."""
    return any(REWARDS["final mean reward"] in run for run in runs)


def columns_of(runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return REWARDS if graded(runs) else COLUMNS


def held_out(run: Mapping[str, float], metric: str) -> float | None:
    """Of a run; its accuracy, where all its rewards were 0 or 1, is a mean reward."""
    return run.get(metric, run.get(metric.replace("_reward", "_accuracy")))


def rows(tasks: Sequence[Task]) -> list[Row]:
    configurations: dict[tuple[tuple[str, str], ...], list[Task]] = {}
    for task in tasks:
        own = tuple((name, value) for name, value in task.varied.items() if name != SEED)
        configurations.setdefault(own, []).append(task)
    table, found = [], outcomes(tasks)
    scale, titles = 1 if graded(found.values()) else 100, columns_of(found.values())
    for own, group in configurations.items():
        metrics = [found[task.number] for task in group if task.number in found]
        columns = {
            title: interquartile_mean([scale * value for value in values if value is not None])
            for title, metric in titles.items()
            if metrics and None not in (values := [held_out(run, metric) for run in metrics])
        }
        table.append(Row(dict(own), len(group), len(metrics), columns))
    return table


def write_table(folder: Path, tasks: Sequence[Task]) -> str:
    """Write ``table.md`` and ``table.json`` into ``folder``, and return the former.

    Array tasks that end together write it together: the last to write has seen all that were finished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        missing = [task for task in tasks if not task.finished]
        table = rows(tasks)
        text = markdown(table, missing, list(columns_of(outcomes(tasks).values())))
        write_whole(folder / "table.md", text)
        record = {
            "rows": [
                vars(row) | {"columns": {title: known(interval) for title, interval in row.columns.items()}}
                for row in table
            ],
            "missing": [
                {"task": task.number, **task.varied, "status": task.status, "folder": str(task.folder)}
                for task in missing
            ],
        }
        write_whole(folder / "table.json", json.dumps(record, indent=2) + "\n")
        if missing == [task for task in tasks if not task.finished]:
            return text


def known(interval: Interval) -> dict[str, float]:
    return {name: value for name, value in interval._asdict().items() if math.isfinite(value)}


def markdown(table: Sequence[Row], missing: Sequence[Task], titles: Sequence[str]) -> str:
    """Interquartile means over seeds with their 95 % intervals; below it whatever is not finished."""

    def cell(interval: Interval | None) -> str:
        if interval is None:
            return ""
        mean, low, high = (f"{value:{shape}}" for value in interval)
        return f"{mean} [{low}, {high}]" if math.isfinite(interval.low) else mean

    shape = ".1f" if list(titles) == list(COLUMNS) else ".3g"
    names = list(table[0].varied) or ["configuration"]
    lines = ["| " + " | ".join([*names, "seeds", *titles]) + " |", "|---" * (len(names) + 1 + len(titles)) + "|"]
    for row in table:
        seeds = f"{row.finished}" if row.finished == row.tasks else f"{row.finished} of {row.tasks}"
        cells = [*(row.varied.values() or ["all"]), seeds, *(cell(row.columns.get(title)) for title in titles)]
        lines.append("| " + " | ".join(cells) + " |")
    if missing:
        lines += ["", f"Not finished: {len(missing)}.", ""]
        lines += [f"- {task}: {task.status}, {task.folder}" for task in missing]
    return "\n".join(lines) + "\n"
