"""What run folders hold, as the report shows it."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from oblr.errors import SettingError, why
from oblr.record.curves import Curve, Curves
from oblr.record.rollouts import files_of_steps
from oblr.run.appended import Appended
from oblr.run.paths import ROOT
from oblr.run.provenance import in_order
from oblr.run.resumed import PATHS
from oblr.run.secrets import masked, masked_overrides
from oblr.run.sweeps import flat

#: A line of ``train.log`` that a logger of the project's own has warned in; where it names a step, which one.
WARNING = re.compile(r"^\S+ \S+ WARNING (?:oblr|callbacks)\S*: (.*)$")
STEP = re.compile(r"\bstep (\d+)\b")


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        settings: by path, without folders; and the choices of groups, where the run has noted them.
        told: those that follow from no other; none of a run that has not noted which do.
        curves: tag → steps and values.
        warnings: the step that each names, if any, and its text.
        finished: whether the run has ended.
        command: that it was started with, and went on with the last time; "" where it is not known.
        method: its parts in plain words, by what each decides; empty of a run that has not noted them.
        resumed: after how many steps the run has gone on, and what was another by then, a line each.
    """

    folder: Path
    settings: dict[str, Any]
    told: dict[str, Any]
    curves: dict[str, Curve]
    warnings: list[tuple[int | None, str]]
    finished: bool
    command: str
    method: dict[str, str]
    resumed: list[tuple[int, list[str]]]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def model(self) -> str:
        """What it trained: a hub id, or a folder, by its path in the clone if it lies there; "" if not known."""
        return str(self.settings.get("policy.path", "")).removeprefix(f"{ROOT}/")

    @cached_property
    def rollouts(self) -> dict[int, list[Path]]:
        """Step → a file of each rank, with the responses that were kept."""
        return files_of_steps(self.folder / "rollouts")


class Reading:
    """What a run adds to its files as it goes on, of which only what is new is read each time."""

    def __init__(self, folder: Path):
        self.curves, self.log = Curves(folder), Appended(folder / "train.log")
        self.said = list[str]()

    def warnings(self) -> list[str]:
        """Each once."""
        lines, replaced = self.log.lines()
        found = [match[1] for line in lines if (match := WARNING.match(line.decode(errors="replace").rstrip("\r")))]
        self.said = list(dict.fromkeys(found if replaced else [*self.said, *found]))
        return self.said


def read_run(folder: Path, reading: Reading | None = None) -> Run:
    """Of a run that was read before, ``reading`` knows what.

    Raises:
        SettingError: there is no run, or none that has logged anything.
    """
    reading = reading or Reading(folder)
    curves = reading.curves.read()
    if not curves or not all(list(folder.glob(pattern)) for pattern in ("config*.yaml", "run*.json")):
        raise SettingError("runs", f"{folder} holds no run that has logged anything", "name folders of runs")
    settings = settings_of(folder)
    record = json.loads(newest(folder, "run*.json").read_text())
    told = placeless(masked(record.get("told", {})))
    choices = {name: choice for name, choice in told.items() if name not in settings}
    return Run(
        folder,
        choices | settings,
        told,
        curves,
        [(int(step[1]) if (step := STEP.search(text)) else None, text) for text in reading.warnings()],
        (folder / "finished.json").exists(),
        typed(masked_overrides(record.get("command", []))),
        record.get("method", {}),
        list(resumptions(folder)),
    )


def resumptions(folder: Path) -> Iterator[tuple[int, list[str]]]:
    """After how many steps a run has gone on, each time, and what was another by then."""
    parts = in_order(folder, "run-*.json")
    for found in (json.loads(path.read_text()).get("resumed") for path in parts):
        if found is not None:
            yield found["after"], found["changed"]


def typed(command: Sequence[str]) -> str:
    """What was typed, by the arguments of a process: a script of the clone by its path there."""
    if not command:
        return ""
    script, *arguments = command
    name = f"python src/{Path(script).name}" if script.endswith(".py") else Path(script).name
    return " ".join([name, *map(shlex.quote, arguments)])


def settings_of(folder: Path) -> dict[str, Any]:
    """Of a run or an evaluation: by path, without folders."""
    file = newest(folder, "config*.yaml")
    try:
        found = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:  # of tags that would make objects, too
        raise SettingError("runs", f"{file} is no plain YAML: {why(error)}", "leave that run out") from error
    if not isinstance(found, dict):
        raise SettingError("runs", f"{file} holds no settings", "leave that run out")
    return placeless(flat(masked(found)))


def newest(folder: Path, pattern: str) -> Path:
    """A run that goes on adds files: the latest of a kind."""
    return in_order(folder, pattern)[-1]


def placeless(settings: dict[str, Any]) -> dict[str, Any]:
    """What would be the same of a run in another folder."""
    return {path: value for path, value in settings.items() if path.partition(".")[0] not in PATHS}


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, or below those that hold sweeps; those that have logged nothing are left out.

    Raises:
        SettingError: there is none that has.
    """
    return runs_and_others(folders)[0]


def runs_and_others(folders: Sequence[Path], read: Callable[[Path], Run] = read_run) -> tuple[list[Run], list[Path]]:
    """These runs, and the folders of those that are left out, as of one that ended before its first step."""
    found = []
    for folder in folders:
        below = sorted(path.parent for path in folder.glob("*/config.yaml"))
        found += [folder] if (folder / "config.yaml").exists() or not below else below
    runs, others = list[Run](), dict[Path, SettingError]()
    for folder in found:
        try:
            runs.append(read(folder))
        except SettingError as error:
            others[folder] = error
    if not runs and others:
        raise next(iter(others.values()))
    return runs, list(others)


def differing(runs: Sequence[Run]) -> list[str]:
    """What runs are told that is not the same in all of them: choices of groups, and paths of settings.

    What always comes with a choice is not told besides it. Where a run has not noted what it was told, all of its
    settings count.
    """
    all_of = [run.told if all(other.told for other in runs) else run.settings for run in runs]
    paths = differing_settings(all_of)

    def comes_with(path: str, group: str) -> bool:
        if not path.startswith(f"{group}."):
            return False
        alike: dict[str, list[dict[str, Any]]] = {}
        for told in all_of:
            alike.setdefault(json.dumps(told.get(group)), []).append(told)
        return not any(path in differing_settings(same) for same in alike.values())

    return [path for path in paths if not any(comes_with(path, group) for group in paths)]


def differing_settings(all_of: Sequence[dict[str, Any]]) -> list[str]:
    """The same, of settings by path."""
    paths = dict.fromkeys(path for settings in all_of for path in settings)
    return [path for path in paths if len({json.dumps(one.get(path), default=str) for one in all_of}) > 1]
