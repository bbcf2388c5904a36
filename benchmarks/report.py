"""The one form of every benchmark's result: a table on the screen and ``benchmarks/results/NAME.json``."""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from oblr.provenance import revision, versions

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Figure:
    """A measured number; ``holds`` says whether it meets ``target`` ("" and None where there is none)."""

    name: str
    value: float
    unit: str
    target: str = ""
    holds: bool | None = None


@dataclass(frozen=True)
class Estimate(Figure):
    """A figure with its 95 % interval."""

    low: float = math.nan
    high: float = math.nan


def at_most(name: str, value: float, unit: str, bound: float) -> Figure:
    return Figure(name, value, unit, f"≤ {bound:g}", value <= bound)


def at_least(name: str, value: float, unit: str, bound: float) -> Figure:
    return Figure(name, value, unit, f"≥ {bound:g}", value >= bound)


def write(name: str, figures: list[Figure]) -> None:
    """Print the figures and keep them, with what they were measured with."""
    table = Table("figure", "value", "unit", "target", "holds", title=name)
    for figure in figures:
        holds = {None: "", True: "yes", False: "NO"}[figure.holds]
        table.add_row(figure.name, f"{figure.value:.4g}", figure.unit, figure.target, holds)
    Console(width=120).print(table)
    arguments = [Path(argument).name if Path(argument).is_absolute() else argument for argument in sys.argv[1:]]
    result = {
        "command": ["python", Path(sys.argv[0]).resolve().relative_to(ROOT).as_posix(), *arguments],
        "versions": versions(),
        "revision": revision(ROOT),
        "figures": [asdict(figure) for figure in figures],
    }
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
