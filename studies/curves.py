"""The contest as pictures: what responses still lack of a full reward, learning rates, and lengths of gradients."""

from collections.abc import Sequence
from pathlib import Path

import neighbours  # noqa: F401
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from training import Record

#: Steps over which a curve is a mean.
WINDOW = 10
#: A schedule's, in every picture.
COLOURS = {"constant": "0.6", "cosine": "C1", "noise_linear": "C3"}


def smoothed(curves: Sequence[Sequence[float]]) -> np.ndarray:
    """Means over :data:`WINDOW` steps, [seeds, steps − WINDOW + 1]."""
    return np.lib.stride_tricks.sliding_window_view(np.array(curves), WINDOW, axis=1).mean(-1)


def draw(tasks: dict[str, dict[str, Sequence[Record]]], path: Path) -> None:
    """A column for each task, a line for each of its schedules: the mean over seeds, and their range."""
    picture = Figure(figsize=(3.4 * len(tasks), 5.4), layout="constrained")
    panels = picture.subplots(2, len(tasks), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 2))
    for (reward, rate), (task, rows) in zip(panels.T, tasks.items(), strict=True):
        for name, records in rows.items():
            colour = COLOURS[name]
            missing = 1 - smoothed([record.reward for record in records])
            steps = np.arange(missing.shape[1]) + WINDOW
            reward.plot(steps, missing.mean(0), color=colour, label=name)
            reward.fill_between(steps, missing.min(0), missing.max(0), color=colour, alpha=0.15, linewidth=0)
            rate.plot(steps, smoothed([record.lr for record in records]).mean(0), color=colour)
        reward.set(title=task, yscale="log", ylim=(0.02, 1), yticks=(0.02, 0.05, 0.1, 0.2, 0.5, 1))
        rate.set(xlabel="step", yscale="log", ylim=(3e-4, 0.1), yticks=(0.001, 0.01, 0.1))
        for axis in (reward, rate):
            axis.grid(alpha=0.3)
            axis.minorticks_off()
    panels[0, 0].set_ylabel("reward that is missing")
    panels[0, 0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panels[1, 0].set_ylabel("learning rate")
    panels[1, 0].yaxis.set_major_formatter("{x:g}")
    panels[0, 0].legend(fontsize="small")
    picture.savefig(path, dpi=110)


def draw_norms(rows: dict[str, Sequence[Record]], path: Path) -> None:
    """``‖ĝ‖`` by step, a line for each of the rows: the mean over seeds, and their range."""
    picture = Figure(figsize=(5.6, 2.8), layout="constrained")
    axis = picture.subplots()
    for name, records in rows.items():
        norms = smoothed([np.sqrt(record.mean_square) for record in records])
        steps = np.arange(norms.shape[1]) + WINDOW
        (line,) = axis.plot(steps, norms.mean(0), label=name)
        axis.fill_between(steps, norms.min(0), norms.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
    axis.set(xlabel="step", ylabel="norm of the gradient", ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    picture.savefig(path, dpi=110)
