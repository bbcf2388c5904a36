"""The one form of every result: a table on the screen, and ``results/NAME.json`` in ``benchmarks`` or ``studies``."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from oblr.run.provenance import revision, versions

ROOT = Path(__file__).resolve().parent.parent


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Of a script with this docstring; ``--quick`` asks for its short form, which says nothing but that it runs."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true")
    return made


def asked_to_be_quick(doc: str | None) -> bool:
    """Of a script that takes nothing else."""
    return parser(doc).parse_args().quick


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


def median_ratio(
    name: str, ratios: Sequence[float], unit: str, most: float | None = None, least: float | None = None
) -> Estimate:
    """The median of paired ratios with its 95 % interval, between order statistics; a target holds where that does.

    Args:
        most, least: the target, if there is one.
    """
    ordered, n = sorted(ratios), len(ratios)
    # as many at each end as still leave 95 % between: of 9 one, since 2·P(at most 1 of 9 below the median) = 3.9 %
    left = max((k for k in range(n) if 2 * sum(math.comb(n, j) for j in range(k + 1)) / 2**n <= 0.05), default=-1)
    low, high = (ordered[left + 1], ordered[n - left - 2]) if left >= 0 else (math.nan, math.nan)
    figure = Estimate(name, median(ordered), unit, low=low, high=high)
    if most is not None:
        return replace(figure, target=f"≤ {most:g}", holds=high <= most)
    return figure if least is None else replace(figure, target=f"≥ {least:g}", holds=low >= least)


def at_most(name: str, value: float, unit: str, bound: float) -> Figure:
    return Figure(name, value, unit, f"≤ {bound:g}", value <= bound)


def at_least(name: str, value: float, unit: str, bound: float) -> Figure:
    return Figure(name, value, unit, f"≥ {bound:g}", value >= bound)


def write(name: str, figures: list[Figure], keep: bool = False, **details: Any) -> None:
    """Print the figures and keep them, with what they were measured with, and with ``details`` for who asks why.

    Args:
        keep: also those of the earlier result that were not measured again, each with the revision that it is of.
    """
    table = Table("figure", "value", "unit", "target", "holds", title=name)
    for figure in figures:
        holds = {None: "", True: "yes", False: "NO"}[figure.holds]
        interval = f" [{figure.low:.4g}, {figure.high:.4g}]" if isinstance(figure, Estimate) else ""
        table.add_row(figure.name, f"{figure.value:.4g}{interval}", figure.unit, figure.target, holds)
    Console(width=120).print(table)
    # The folders of this machine say nothing elsewhere.
    arguments = [Path(argument).name if Path(argument).is_absolute() else argument for argument in sys.argv[1:]]
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    result = {
        "command": ["python", script.as_posix(), *arguments],
        "versions": versions(),
        "revision": revision(ROOT),
        "figures": [asdict(figure) for figure in figures],
        **details,
    }
    path = ROOT / ("studies" if script.parts[0] == "studies" else "benchmarks") / "results" / f"{name}.json"
    if keep:
        earlier, measured = json.loads(path.read_text()), {figure.name for figure in figures}
        others = (figure for figure in earlier["figures"] if figure["name"] not in measured)
        result["figures"] += [{"revision": earlier["revision"], **figure} for figure in others]
    path.write_text(text(result))


def text(result: dict[str, Any]) -> str:
    """JSON with a line for each figure, and for each entry of other tables; numbers to twelve digits."""

    def short(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: short(of) for name, of in part.items()}
        if isinstance(part, list | tuple):
            return [short(of) for of in part]
        return float(f"{part:.12g}") if isinstance(part, float) else part

    def dumped(part: Any) -> str:
        return json.dumps(short(part), ensure_ascii=False)

    def lines(part: Any) -> str:
        if isinstance(part, dict):
            return "{\n" + ",\n".join(f"    {dumped(name)}: {dumped(of)}" for name, of in part.items()) + "\n  }"
        if isinstance(part, list) and any(isinstance(of, dict) for of in part):
            return "[\n" + ",\n".join(f"    {dumped(of)}" for of in part) + "\n  ]"
        return dumped(part)

    return "{\n" + ",\n".join(f"  {dumped(name)}: {lines(part)}" for name, part in result.items()) + "\n}\n"
