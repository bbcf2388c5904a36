"""Every number that a run has logged, read from the file in its folder."""

import json
from array import array
from bisect import bisect_left
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any

from oblr.run.appended import Appended

#: Of a curve, its steps and values.
Curve = tuple[MutableSequence[int], MutableSequence[float]]
#: In a run folder.
METRICS = "metrics.jsonl"
#: Logged with every step, and with nothing that comes between steps.
OF_STEP = "train/lr"


class Curves:
    """All scalars of a run that may go on: each time, only what it has logged since is read.

    Where held-out rewards have turned out to be others than 0 and 1, what was called their accuracy is their mean.
    """

    def __init__(self, folder: Path):
        self.file, self.points, self.from_zero = Appended(folder / METRICS), dict[str, Curve](), False

    def read(self) -> dict[str, Curve]:
        """Tag → (steps, values), without those that are not finite; what comes later counts, of one step."""
        written, replaced = self.file.lines()
        lines = [json.loads(line) for line in written]
        if replaced:
            self.points, self.from_zero = {}, False
        # An earlier version counted from 0: its file begins with that step.
        self.from_zero |= any(line["step"] == 0 and OF_STEP in line for line in lines)
        for line in lines:
            step = line["step"] + (self.from_zero and OF_STEP in line)
            for tag, value in line.items():
                if tag == "step" or value is None:
                    continue
                if tag not in self.points:
                    self.points[tag] = (array("q"), array("d"))
                steps, values = curve = self.points[tag]
                if steps and step <= steps[-1]:
                    put(curve, step, value)
                else:  # as nearly always
                    steps.append(step)
                    values.append(value)
        found = dict(self.points)
        for tag in [tag for tag in found if tag.startswith("eval/") and tag.endswith("_reward")]:
            mean: Curve = (found[tag][0][:], found[tag][1][:])
            for step, value in zip(*found.pop(f"{tag.removesuffix('reward')}accuracy", ([], [])), strict=True):
                put(mean, step, value)
            found[tag] = mean
        return found


def put(curve: Curve, step: int, value: float) -> None:
    """A point into its place, or in place of the one that is there."""
    steps, values = curve
    place = len(steps) if not steps or step > steps[-1] else bisect_left(steps, step)
    if place < len(steps) and steps[place] == step:
        values[place] = value
    else:
        steps.insert(place, step)
        values.insert(place, value)


def read_curves(folder: Path) -> dict[str, Curve]:
    """All scalars of a run, as :class:`Curves` has them, in lists."""
    return {tag: (list(steps), list(values)) for tag, (steps, values) in Curves(folder).read().items()}


def logged(path: Path) -> list[dict[str, Any]]:
    """A last line that a killed run has not written whole is left out; steps that count from 0 are told from 1 on."""
    written = path.read_text().splitlines(keepends=True) if path.exists() else []
    lines = [json.loads(line) for line in written if line.endswith("\n")]
    if any(line["step"] == 0 and OF_STEP in line for line in lines):  # of an earlier version
        lines = [line | {"step": line["step"] + (OF_STEP in line)} for line in lines]
    return lines
