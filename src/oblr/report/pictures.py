"""The charts of the report as PNG files, for papers."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from oblr.record.curves import Curve
from oblr.record.tags import RATE, first, name
from oblr.report.comparison import configuration
from oblr.report.runs import Run, differing
from oblr.run.sweeps import SEED


def write_pictures(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Write ``report-<chart>.png`` into ``folder`` for each chart that these runs have; returns the files.

    Of one run a chart has a line a tag. Of several it has, for its first tag, a line for the mean of each configuration
    and a band from the lowest to the highest of its seeds.
    """
    written = []
    for title, patterns in first(tags_of(runs)).items():
        tags = [tag for pattern in patterns for tag in tags_of(runs) if re.fullmatch(pattern, tag)]
        found = list(lines(runs, tags)) if tags else []
        if found:
            path = folder / f"report-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}.png"
            words = dict.fromkeys(run.method.get(RATE, "") for run in runs) if title == RATE else {}
            titled = "\n".join([title, *filter(None, words)])
            draw(titled, name(tags[0]) if len(runs) > 1 else "", found).savefig(path, dpi=200)
            written.append(path)
    return written


def tags_of(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(tag for run in runs for tag in run.curves))


def lines(runs: Sequence[Run], tags: Sequence[str]) -> Iterator[tuple[str, list[Curve]]]:
    """(label, the curves that a line is the mean of)."""
    if len(runs) == 1:
        yield from ((name(tag), [runs[0].curves[tag]]) for tag in tags)
        return
    differs = differing(runs)
    names = [path for path in differs if path != SEED]
    groups: dict[str, list[Curve]] = {}
    for run in runs:
        if tags[0] in run.curves:
            values = zip(names, configuration(run, differs), strict=True)
            groups.setdefault(" ".join(f"{n}={v}" for n, v in values) or "all", []).append(run.curves[tags[0]])
    yield from groups.items()


def draw(title: str, tag: str, found: Sequence[tuple[str, list[Curve]]]) -> Figure:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    for label, curves in found:
        points: dict[int, list[float]] = {}
        for steps, values in curves:
            for step, value in zip(steps, values, strict=True):
                points.setdefault(step, []).append(value)
        at = sorted(points)
        axes.plot(at, [np.mean(points[step]) for step in at], label=label, linewidth=1.2)
        if len(curves) > 1:
            axes.fill_between(at, [min(points[s]) for s in at], [max(points[s]) for s in at], alpha=0.2)
    axes.set_title(title, fontsize="small" if "\n" in title else "large")
    axes.set(xlabel="step", ylabel=tag)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")
    return figure
