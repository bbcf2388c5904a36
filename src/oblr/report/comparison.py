"""Configurations compared over their seeds: means with intervals, and paired tests against the first of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from oblr.metrics.aggregate import interquartile_mean
from oblr.metrics.problems import paired_difference
from oblr.record.figures import held_out_figures
from oblr.report.runs import Run
from oblr.run.sweeps import COLUMNS, SEED, columns_of, held_out


def titled(columns: Mapping[str, str]) -> dict[str, str]:
    """Title → metric of a run. The first is there without any evaluation."""
    return {"reward over the run": "train/reward"} | {title.removesuffix(", %"): of for title, of in columns.items()}


TITLES = titled(COLUMNS)


def comparison(runs: Sequence[Run], differs: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each configuration of the finished runs, the settings in ``differs`` except for the seed.

    ``columns`` are interquartile means over its runs with their 95 % intervals; ``against`` are the differences from
    the first configuration on the seeds that both have, each with the interval and the p-value of one sign-flip test.
    Of fewer than six seeds no test can exclude a tie.
    """
    rows: dict[str, list[Run]] = {}
    for run in runs:
        if run.finished:
            rows.setdefault(str(configuration(run, differs)), []).append(run)
    titles = titled(columns_of(run.curves for run in runs))
    numbers = {title: [of_seeds(group, metric) for group in rows.values()] for title, metric in titles.items()}
    return [
        {
            "configuration": configuration(group[0], differs),
            "seeds": len(group),
            "columns": {
                title: finite(interquartile_mean(list(values[place].values())))
                for title, values in numbers.items()
                if values[place]
            },
            "against": {
                title: finite(paired_difference(*shared))
                for title, values in numbers.items()
                if place and (shared := pairs(values[0], values[place]))[0].size
            },
        }
        for place, group in enumerate(rows.values())
    ]


def configuration(run: Run, differs: Sequence[str]) -> list[Any]:
    """What tells a run from those of other configurations."""
    return [run.settings.get(path) for path in differs if path != SEED]


def of_seeds(runs: Sequence[Run], metric: str) -> dict[Any, float]:
    """Seed → a metric of its run; of the training reward the mean over all steps."""
    found = {}
    for run in runs:
        values = {**held_out_figures(run.curves), "train/reward": float(np.mean(run.curves["train/reward"][1]))}
        if (value := held_out(values, metric)) is not None:
            found[run.settings.get(SEED)] = value
    return found


def pairs(first: dict[Any, float], second: dict[Any, float]) -> tuple[np.ndarray, np.ndarray]:
    """Of the seeds that both have, in one order."""
    both = [seed for seed in first if seed in second]
    return np.array([first[seed] for seed in both]), np.array([second[seed] for seed in both])


def finite(numbers: NamedTuple) -> dict[str, float | None]:
    """As JSON can say it: None for infinite ends."""
    return {name: value if math.isfinite(value) else None for name, value in numbers._asdict().items()}
