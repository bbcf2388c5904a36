"""The last figures of a run, and the areas under their curves."""

from pathlib import Path

from oblr.metrics.accuracy import NAMES
from oblr.metrics.aggregate import area_under_curve
from oblr.record.curves import Curve, read_curves


def outcome(folder: Path) -> dict[str, float]:
    """The last held-out figures of the run in ``folder`` by tag, and the areas under their curves."""
    return held_out_figures(read_curves(folder))


def held_out_figures(curves: dict[str, Curve]) -> dict[str, float]:
    """The same, of curves that were read."""
    metrics = {}
    for tag, (steps, values) in curves.items():
        if tag.startswith("eval/"):
            metrics[tag] = values[-1]
            name, _, end = tag.rpartition("_")
            if end in NAMES:
                metrics[f"{name}_area"] = area_under_curve(steps, values)
    return metrics
