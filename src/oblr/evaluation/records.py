"""The folder of an evaluation: of a benchmark ``<name>.json``, settings and figures, and ``<name>.jsonl``, responses.

The responses of finished benchmarks are in ``rollouts/`` as well, in the form that training keeps them in.

A benchmark is sampled in chunks of problems. What a chunk has been written of when the process is killed is sampled
again, and nothing else.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oblr.errors import SettingError
from oblr.evaluation.attempts import Attempts
from oblr.evaluation.measures import Row, are_verdicts, by_group, comparison_table, differences, measure, table
from oblr.metrics.aggregate import Interval
from oblr.problem import Problem
from oblr.run.disk import write_whole
from oblr.run.responses import compressed


class Record:
    """What has been sampled of one benchmark, and with which settings.

    Args:
        folder, name: where it stands.
        settings: everything that a number depends on; JSON.

    Raises:
        SettingError: the folder has the benchmark with other settings.
    """

    def __init__(self, folder: Path, name: str, settings: dict[str, Any]):
        self.summary, self.rows = folder / f"{name}.json", folder / f"{name}.jsonl"
        self.settings, self.attempts = settings, []
        if not self.summary.exists():
            return
        found = json.loads(self.summary.read_text())["settings"]
        for key in {**settings, **found}:
            if (theirs := found.get(key)) != (ours := settings.get(key)):
                raise SettingError(
                    "paths.output_dir",
                    f"{self.summary} has {key} {_short(theirs)}, and this evaluation {_short(ours)}",
                    "give another folder, or the settings of that one",
                )
        self.attempts = self._whole_chunks()

    def _whole_chunks(self) -> list[Attempts]:
        if not self.rows.exists():
            return []
        lines = self.rows.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last line end is torn
        if len(lines) < self.settings["problems"]:
            lines = lines[: len(lines) // self.settings["chunk"] * self.settings["chunk"]]
        return [Attempts.from_row(json.loads(line)) for line in lines]

    @property
    def complete(self) -> bool:
        return len(self.attempts) == self.settings["problems"]

    def begin(self) -> None:
        """Write the settings, and drop what is left of a chunk that was not whole."""
        if not self.summary.exists():
            write_whole(self.summary, json.dumps({"settings": self.settings}, indent=2, ensure_ascii=False) + "\n")
        write_whole(self.rows, "".join(map(_line, self.attempts)))

    def add(self, attempts: Sequence[Attempts]) -> None:
        with self.rows.open("a", encoding="utf-8") as file:
            file.write("".join(map(_line, attempts)))
            file.flush()
            os.fsync(file.fileno())
        self.attempts += attempts

    def finish(self, ks: Sequence[int], groups: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Write the figures, settings and an example of the whole prompt beside them.

        Args:
            groups: what columns say of each problem; the figures of problems that are alike there are written, too.
        """
        verdicts = are_verdicts(self.attempts)
        summary = {
            "figures": _written(measure(self.attempts, ks, verdicts)),
            "by": {
                f"{column}={group}": {
                    "problems": len(part),
                    "figures": _written(measure(part, ks, verdicts)),
                    "ids": [one.id for one in part],
                }
                for column, values in (groups or {}).items()
                for group, part in by_group(self.attempts, values).items()
            },
            "k": list(ks),
            "settings": self.settings,
            "example": self.attempts[0].row(),
        }
        write_whole(self.summary, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
        responses = rollouts(self.summary.parent, self.summary.stem)
        responses.parent.mkdir(exist_ok=True)
        write_whole(responses, one_by_one(self.attempts))


def rollouts(folder: Path, name: str) -> Path:
    """The file with a finished benchmark's responses, one by one."""
    return folder / "rollouts" / f"{name}.jsonl.gz"


def one_by_one(attempts: Iterable[Attempts]) -> bytes:
    """What that file holds."""
    return compressed(row for place, one in enumerate(attempts) for row in one.rollouts(place))


def _written(figures: dict[str, Interval]) -> dict[str, dict[str, float]]:
    return {name: interval._asdict() for name, interval in figures.items()}


def _line(attempts: Attempts) -> str:
    return json.dumps(attempts.row(), ensure_ascii=False) + "\n"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def digest(problems: Sequence[Problem]) -> str:
    """Tells whether two lists of problems are the same, reference answers included."""
    rows = [[problem.id, problem.prompt, problem.answer] for problem in problems]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def write_table(folder: Path, models: Mapping[str, Path] | None = None) -> str:
    """``table.md`` of every finished benchmark in the folder, or of several models; and what they leave out."""
    rows, left_out = [], dict[str, int]()
    for model, place in (models or {"": folder}).items():
        for name, summary in finished(place).items():
            left_out[name] = summary["settings"].get("left_out", 0)
            parts = {name: {"problems": summary["settings"]["problems"], "figures": summary["figures"]}}
            parts |= {f"{name}: {group}": part for group, part in summary.get("by", {}).items()}
            for benchmark, part in parts.items():
                figures = {figure: Interval(**ends) for figure, ends in part["figures"].items()}
                rows.append(Row([model, benchmark] if models else [benchmark], part["problems"], figures))
    notes = [
        f"{name}: {count} problems whose answer is prose are left out\n" for name, count in left_out.items() if count
    ]
    text = table(rows) + ("\n" if notes else "") + "\n".join(notes)
    write_whole(folder / "table.md", text)
    return text


def compare(first: Path, second: Path) -> str:
    """Table of how the second evaluation differs from the first, problem by problem, and where their settings do.

    Groups that both have figures of have rows of their own.

    Raises:
        SettingError: they have no finished benchmark in common, or one with different problems of the same id.
    """
    for folder in (first, second):
        if not folder.is_dir():
            raise SettingError("compare", f"there is no folder {folder}", "give two that eval.py has written")
    ours, theirs = finished(first), finished(second)
    if not ours.keys() & theirs.keys():
        raise SettingError(
            "compare", f"{first} and {second} have no finished benchmark in common", "evaluate both on the same ones"
        )
    rows, sizes, notes = {}, {}, []
    for name in (name for name in ours if name in theirs):
        settings, others = ours[name]["settings"], theirs[name]["settings"]
        pairs = _same_problems(name, *(saved(folder / f"{name}.jsonl") for folder in (first, second)))
        ks = sorted({*ours[name]["k"]} & {*theirs[name]["k"]})
        verdicts = are_verdicts([one for pair in pairs for one in pair])
        parts = {name: pairs}
        for group in (group for group in ours[name].get("by", {}) if group in theirs[name].get("by", {})):
            ids = {*ours[name]["by"][group].get("ids", ())} & {*theirs[name]["by"][group].get("ids", ())}
            parts[f"{name}: {group}"] = [pair for pair in pairs if pair[0].id in ids]
        for part, of_part in parts.items():
            if of_part:
                rows[part] = differences([a for a, _ in of_part], [b for _, b in of_part], ks, verdicts)
                sizes[part] = len(of_part)
        for key in settings | others:
            if settings.get(key) != others.get(key):
                notes.append(f"- {name}: {key} is {_short(settings.get(key))} and {_short(others.get(key))}\n")
    return comparison_table(rows, sizes) + ("\n" if notes else "") + "".join(notes)


def finished(folder: Path) -> dict[str, dict[str, Any]]:
    """Summaries of the finished benchmarks in a folder, by name."""
    summaries = (path.with_suffix(".json") for path in sorted(folder.glob("*.jsonl")))
    found = {path.stem: json.loads(path.read_text()) for path in summaries if path.exists()}
    return {name: summary for name, summary in found.items() if "figures" in summary}


def saved(path: Path) -> dict[str, Attempts]:
    """What a finished benchmark's file has of each problem, by id."""
    rows = map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1])
    return {row["id"]: Attempts.from_row(row) for row in rows}


def _same_problems(
    name: str, first: dict[str, Attempts], second: dict[str, Attempts]
) -> list[tuple[Attempts, Attempts]]:
    pairs = [(first[id], second[id]) for id in first if id in second]
    if not pairs:
        raise SettingError("compare", f"the two have no problem of {name} in common", "evaluate both on the same ones")
    for ours, theirs in pairs:
        if ours.answer != theirs.answer:
            raise SettingError(
                "compare", f"problem {ours.id} of {name} has two answers", "evaluate both on the same problems"
            )
    return pairs
