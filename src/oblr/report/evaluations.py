"""The page of an evaluation: figures with intervals, and every problem's responses to read."""

import base64
import csv
import io
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from oblr.evaluation.records import finished, one_by_one, rollouts, saved
from oblr.report.page import ROOM, filled
from oblr.report.pieces import Beside, Piece, Shelf
from oblr.report.runs import differing_settings, settings_of
from oblr.run.disk import write_private, write_whole

#: What the page calls its sections here.
WORDS = {
    "comparison": "Figures",
    "hint": "Means over problems with 95 % intervals.",
    "count": "problems",
    "step": "Responses",
    "place": "benchmark",
    "warnings": "Notes",
}
#: Title, key and meaning of the numbers of a response.
COLUMNS = [("reward", "reward", "what the response was given"), ("tokens", "tokens", "length of the response")]


def evaluations(folder: Path) -> dict[str, Path]:
    """Model → the folder with its finished benchmarks, which is this one or lies below it; empty if there is none."""
    places = [folder] if finished(folder) else [path for path in sorted(folder.iterdir()) if path.is_dir()]
    found = {path: list(finished(path).values()) for path in places}
    return {summaries[0]["settings"]["model"]: path for path, summaries in found.items() if summaries}


def write_evaluation(folder: Path, models: Mapping[str, Path]) -> Path:
    """Write ``report.html`` and ``report.csv`` into ``folder``, of the evaluations of these models."""
    page, shelf = folder / "report.html", Beside(folder)
    shown = content(models, shelf)
    write_private(page, filled(shown, shelf))
    shelf.tidy()
    write_whole(folder / "report.csv", table(shown))
    return page


def content(models: Mapping[str, Path], shelf: Shelf) -> dict[str, Any]:
    """What the page shows: each model is a run, whose benchmarks stand for steps.

    Responses of as many benchmarks as the page has room for are on it; others go to the shelf, a piece each.
    """
    summaries = {model: finished(folder) for model, folder in models.items()}
    several = len(models) > 1
    settings = {model: settings_of(folder) for model, folder in models.items()}
    room, runs = ROOM, []
    for model, folder in models.items():
        here, beside = dict[int, Any](), list[tuple[str, list[int]]]()
        notes = list[tuple[None, str]]()
        for place, (name, summary) in enumerate(summaries[model].items()):
            path = rollouts(folder, name)  # which earlier versions have not written
            packed = path.read_bytes() if path.exists() else one_by_one(saved(folder / f"{name}.jsonl").values())
            text = base64.b64encode(packed).decode()
            responses = {"numbers": {}, "ranks": [text]}
            if len(text) <= room:
                here[place] = responses
                room -= len(text)
            else:
                beside.append((shelf.put(of_benchmark(place, model, packed, responses)), [place]))
            if left_out := summary["settings"].get("left_out"):
                notes.append((None, f"{name}: {left_out} problems whose answer is prose are left out"))
        runs.append(
            {
                "name": model,
                "finished": True,
                "settings": settings[model],
                "configuration": [model],
                "warnings": notes,
                "steps": here,
                "pieces": beside,
                "places": list(summaries[model]),
            }
        )
    return {
        "runs": runs,
        "words": WORDS,
        "varied": ["model", "benchmark"] if several else ["benchmark"],
        "differs": differing_settings(list(settings.values())),
        "comparison": [
            {
                "configuration": [model, part] if several else [part],
                "seeds": figures["problems"],
                "columns": figures["figures"],
                "against": {},
            }
            for model, of_model in summaries.items()
            for part, figures in parts(of_model).items()
        ],
        "columns": COLUMNS,
        "charts": {},
        "curves": {},
        "meanings": {},
        "names": {},
    }


def of_benchmark(place: int, model: str, packed: bytes, responses: dict[str, Any]) -> Piece:
    """A benchmark's responses."""
    return Piece(
        f"steps-{place:06d}-{place:06d}", (model, place), lambda: sha256(packed).hexdigest(), lambda: {place: responses}
    )


def parts(summaries: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each benchmark, and of each group of its problems, how many problems it has, and its figures."""
    found: dict[str, dict[str, Any]] = {}
    for name, summary in summaries.items():
        found[name] = {"problems": summary["settings"]["problems"], "figures": summary["figures"]}
        found |= {f"{name}: {group}": part for group, part in summary.get("by", {}).items()}
    return found


def table(shown: Mapping[str, Any]) -> str:
    """All figures as CSV: what they are of, figure, mean, and the ends of its interval."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*shown["varied"], "problems", "figure", "mean", "low", "high"])
    for row in shown["comparison"]:
        for figure, interval in row["columns"].items():
            writer.writerow([*row["configuration"], row["seeds"], figure, *interval.values()])
    return file.getvalue()
