"""A page to read runs on: curves, the steps behind them, and the responses behind those.

It is one file that needs no other, unless there is more than a browser opens at once: then curves are thinned, and
steps and all points of curves are in a folder beside it.
"""

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from oblr.doctor.diagnosis import diagnose, sentences
from oblr.doctor.reading import read
from oblr.errors import SettingError
from oblr.record.rollouts import columns
from oblr.record.tags import BANDS, first, meaning, name
from oblr.report.comparison import comparison, configuration
from oblr.report.curves import Line, buckets_of, configurations, lines, thinned, width
from oblr.report.pieces import (
    FILES,
    SIZE,
    Beside,
    Piece,
    Shelf,
    base64_size,
    digest,
    identity_of,
    in_base64,
    parts,
)
from oblr.report.runs import Run, differing
from oblr.run.disk import write_private, write_whole

ASSETS = Path(__file__).parent / "assets"
#: Bytes of curves and compressed responses that a page may have itself; what is beyond is beside it.
ROOM = 14 * 2**20
#: Bytes of responses that may be written beside a page; beyond, every second step is left out, and so on.
ROOM_BESIDE = 2**30
#: Bytes of a number of a curve, about.
NUMBER = 20
#: Of several runs a chart shows one tag: the first of its own, unless it has one of these.
SHOWN = ("snr/factor_ema", "baseline/gradient_weighted", "gradnorm/q50", "time/step")
#: What is told with a step's responses.
TOLD = re.compile(r"(?:train|rollout|snr|eval)/")


def write_report(folder: Path, runs: Sequence[Run]) -> Path:
    """Write ``report.html`` and ``report.csv`` into ``folder``; the former needs ``report_files/`` if that is there."""
    page, shelf = folder / "report.html", Beside(folder)
    write_private(page, html(runs, shelf))
    shelf.tidy()
    write_whole(folder / "report.csv", table(runs))
    return page


def whereabouts(page: Path) -> str:
    """Where the report is, in words."""
    return f"{page} and {FILES}/: keep them together" if (page.parent / FILES).is_dir() else str(page)


def html(runs: Sequence[Run], shelf: Shelf | None = None) -> str:
    """The page's text."""
    return filled(content(runs, shelf), shelf)


def filled(shown: dict[str, Any], shelf: Shelf | None = None) -> str:
    """The page that shows this, and loads what is on the shelf, but nothing else."""
    text = (ASSETS / "page.html").read_text()
    for part in ("uPlot.css", "page.css", "uPlot.js", "curves.js", "step.js", "page.js"):
        text = text.replace(f"<!-- {part} -->", (ASSETS / part).read_text())
    allowed = " ".join(map(fingerprint, re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)))
    text = text.replace("<!-- scripts -->", f"{allowed} 'self'" if shelf is not None and shelf.used else allowed)
    data = json.dumps(shown, ensure_ascii=True, separators=(",", ":"), default=str)
    # Nothing in a response ends the element that it stands in, or is taken for anything but text.
    return text.replace("<!-- data -->", data.replace("<", "\\u003c"))


def fingerprint(script: str) -> str:
    """Of a script of ours, by which a browser tells it from any other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def content(runs: Sequence[Run], shelf: Shelf | None = None) -> dict[str, Any]:
    """What the page shows. Where it is more than ``ROOM``, part of it goes to the shelf, if there is one."""
    differs = differing(runs)
    tags = list(dict.fromkeys(tag for run in runs for tag in run.curves))
    charts = charted(tags)
    groups = configurations(runs, differs)
    curves = {tag: lines(groups, tag) for tag in dict.fromkeys(tag for of in charts.values() for tag in of)}
    shelf = shelf if bytes_of(runs, curves) > ROOM else None
    steps = [kept(run, shelf, ROOM_BESIDE // len(runs)) for run in runs]
    of_runs = [
        {
            "name": run.name,
            "command": run.command,
            "model": run.model,
            "method": run.method,
            "finished": run.finished,
            "settings": run.settings,
            "configuration": configuration(run, differs),
            "last": {tag: [at[-1], values[-1]] for tag, (at, values) in run.curves.items()},
            "took": [len(spent := run.curves.get("time/step", ([], []))[1]), sum(spent)],
            "warnings": run.warnings,
            "doctor": found(run) if len(runs) == 1 else [],
            "resumed": run.resumed,
            **of_run,
        }
        for run, of_run in zip(runs, steps, strict=True)
    ]
    chosen = {title: next((tag for tag in of if tag in SHOWN), of[0]) for title, of in charts.items()}
    return {
        "runs": of_runs,
        "differs": differs,
        "comparison": comparison(runs, differs),
        "charts": charts,
        "chosen": chosen,
        **(drawn(curves, chosen.values() if len(runs) > 1 else curves, groups, shelf)),
        "bands": BANDS,
        "columns": [(one.title, one.key, one.meaning) for one in columns() if one.title],
        "meanings": {tag: meaning(tag) for tag in tags},
        "names": {tag: name(tag) for tag in tags},
    }


def found(run: Run) -> list[str]:
    """What the doctor says of it; nothing where its responses were not kept."""
    try:
        steps = read(run.folder)
    except SettingError:
        return []
    return sentences(steps, diagnose(steps), ours=True)


def charted(tags: Sequence[str]) -> dict[str, list[str]]:
    """Title → the tags of that chart which these runs have, for each chart that has any."""
    found = {
        title: list(dict.fromkeys(tag for pattern in patterns for tag in tags if re.fullmatch(pattern, tag)))
        for title, patterns in first(tags).items()
    }
    return {title: of for title, of in found.items() if of}


def bytes_of(runs: Sequence[Run], curves: Mapping[str, Sequence[Line]]) -> int:
    """What the page would have if all of it were on it."""
    numbers = sum(line.numbers for of_tag in curves.values() for line in of_tag)
    return NUMBER * numbers + sum(base64_size(files) for run in runs for files in run.rollouts.values())


# --- curves ---------------------------------------------------------------------------------------------------------


def drawn(
    curves: Mapping[str, Sequence[Line]], at_once: Any, groups: Sequence[Sequence[Run]], shelf: Shelf | None
) -> dict[str, Any]:
    """``curves``: tag → lines on the page; ``every``: of how many points one was kept; ``exact``: where all are."""
    if shelf is None:
        return {
            "curves": {tag: all_written(of) for tag, of in curves.items()},
            "every": {},
            "exact": {},
        }
    here = {tag: curves[tag] for tag in dict.fromkeys(at_once)}
    buckets = buckets_of([line for of_tag in here.values() for line in of_tag])
    every = {tag: max(width(len(line.steps), buckets) for line in of_tag) for tag, of_tag in here.items()}
    members = tuple(tuple(str(run.folder) for run in runs) for runs in groups)
    return {
        "curves": {tag: [thinned(line, buckets).written() for line in of_tag] for tag, of_tag in here.items()},
        "every": every,
        "exact": {
            tag: [[low, high, shelf.put(one)] for low, high, one in exact(tag, of_tag, members)]
            for tag, of_tag in curves.items()
            if every.get(tag) != 1
        },
    }


def exact(tag: str, of_tag: Sequence[Line], members: Any) -> Iterator[tuple[int, int, Piece]]:
    """All points of a tag's lines in pieces: first and last step of each, and the piece."""
    last = max(int(line.steps[-1]) for line in of_tag)
    wide = 2 ** int(np.log2(max(SIZE * (last + 1) / NUMBER / sum(line.numbers for line in of_tag), 1)))
    for low in range(0, last + 1, wide):
        found = [part for line in of_tag if len((part := line.between(low, low + wide - 1)).steps)]
        if found:
            yield (
                low,
                low + wide - 1,
                Piece(
                    f"curve-{low:06d}-{low + wide - 1:06d}",
                    (tag, low, members),
                    partial(version_of, tag, found),
                    partial(all_written, found),
                ),
            )


def all_written(found: Sequence[Line]) -> list[object]:
    return [line.written() for line in found]


def version_of(tag: str, found: Sequence[Line]) -> tuple[str, str]:
    return tag, digest(tuple((line.of, line.steps.tobytes(), *(c.tobytes() for c in line.columns)) for line in found))


# --- steps ----------------------------------------------------------------------------------------------------------


def kept(run: Run, shelf: Shelf | None, room: int) -> dict[str, Any]:
    """``steps``: the steps that the page has, with what was kept of each; ``pieces``: addresses of others, with theirs.

    Of a long run these are as many steps, evenly spread, as ``room`` bytes hold, or as another report has already.
    """
    told = {tag: (np.array(at), np.array(values)) for tag, (at, values) in run.curves.items() if TOLD.match(tag)}
    if shelf is None:
        return {"steps": of_steps(run.rollouts, told, list(run.rollouts)), "pieces": []}
    sizes = {step: base64_size(files) for step, files in run.rollouts.items()}
    while True:
        pieces = [(steps, of_piece(run, told, steps)) for steps in parts(sizes)]
        if sum(sizes.values()) <= room or all(shelf.has(one, [run.folder]) for _, one in pieces):
            return {"steps": {}, "pieces": [[shelf.put(one, [run.folder]), steps] for steps, one in pieces]}
        sizes = {step: size for place, (step, size) in enumerate(sizes.items()) if place in spread(len(sizes))}


def spread(count: int) -> range:
    """The places of every second of so many steps, the first among them; of a single one that has no room, none."""
    return range(0, count, 2) if count > 1 else range(0)


Told = Mapping[str, tuple[np.ndarray, np.ndarray]]


def of_piece(run: Run, told: Told, steps: Sequence[int]) -> Piece:
    """Some steps of a run."""
    files = {step: run.rollouts[step] for step in steps}
    return Piece(
        f"steps-{steps[0]:06d}-{steps[-1]:06d}",
        (str(run.folder), steps[0]),
        lambda: (*(identity_of(of_step) for of_step in files.values()), repr(told_of(told, steps))),
        partial(of_steps, files, told, steps),
    )


def of_steps(files: Mapping[int, Sequence[Path]], told: Told, steps: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Of each step its numbers, and the ranks' files of responses in base64."""
    return {
        step: {"numbers": numbers, "ranks": in_base64(files[step])} for step, numbers in told_of(told, steps).items()
    }


def told_of(told: Told, steps: Sequence[int]) -> dict[int, dict[str, float]]:
    """Of each step the numbers that were logged of it."""
    found: dict[int, dict[str, float]] = {step: {} for step in steps}
    for tag, (at, values) in told.items():
        places = np.searchsorted(at, steps)
        for step, place in zip(steps, places, strict=True):
            if place < len(at) and at[place] == step:
                found[step][tag] = float(values[place])
    return found


def table(runs: Sequence[Run]) -> str:
    """All curves as CSV: run, step, tag, value."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "step", "tag", "value"])
    for run in runs:
        for tag, (steps, values) in run.curves.items():
            writer.writerows([run.name, step, tag, value] for step, value in zip(steps, values, strict=True))
    return file.getvalue()
