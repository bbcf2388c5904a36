"""What the cog blocks of README and pages print: figures of committed results, in sentences and in tables.

``python benchmarks/measured.py`` runs all blocks and writes what they print below them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from measured import results

NUMBER = r"[-+−]?\d[\d,.]*(?:e-?\d+)?"
#: A number with what may belong to it: another one from which it reaches, a per cent sign, an interval.
FIGURE = rf"(?:{NUMBER} to )?{NUMBER}(?: %)?(?: \[{NUMBER}, {NUMBER}\])?"


def values(name: str) -> dict[str, float]:
    """The figures of a result without their intervals."""
    return {figure: of["value"] for figure, of in results(name).items()}


def signed(text: str) -> str:
    """With the minus sign of pages."""
    return re.sub(r"(?<!e)-", "−", text)


def with_ends(figure: Mapping[str, Any], form: str = ".1f") -> str:
    """A figure and its interval."""
    return signed(f"{figure['value']:{form}} [{figure['low']:{form}}, {figure['high']:{form}}]")


def turned(figure: Mapping[str, Any], form: str = ".1f") -> str:
    """A difference and its interval, as the other side sees it."""
    return with_ends({"value": -figure["value"], "low": -figure["high"], "high": -figure["low"]}, form)


def span(figures: Iterable[float], form: str = ".2f") -> str:
    """From the least to the largest; once where they are written alike."""
    ordered = sorted(figures)
    return signed(" to ".join(dict.fromkeys(f"{end:{form}}" for end in (ordered[0], ordered[-1]))))


def cells(of: Mapping[str, Mapping[str, Any]], row: str, columns: Mapping[str, str]) -> list[str]:
    """Figures ``"{row}: {column}"`` by their forms, with intervals where they have any; empty where there is none."""
    found = [(of.get(f"{row}: {column}"), form) for column, form in columns.items()]
    return [
        "" if figure is None else with_ends(figure, form) if "low" in figure else signed(f"{figure['value']:{form}}")
        for figure, form in found
    ]


def percent(figure: Mapping[str, Any], form: str = ".0f") -> str:
    """A share and its interval, in percent."""
    value, low, high = (f"{100 * figure[end]:{form}}" for end in ("value", "low", "high"))
    return f"{value} % [{low}, {high}]"


def power(value: float, form: str = ".0e") -> str:
    """A number by its power of ten, as pages write it: 5e-6."""
    return f"{value:{form}}".replace("e-0", "e-")


def put(**figures: object) -> None:
    """Print what stands below the block, each number that a comment with a name follows anew: 1.14<!--short-->.

    Raises:
        ValueError: a name has no such number, or is another than those that are given.
    """
    import cog  # there while cog runs a block

    named = re.findall(r"<!--(\w+)-->", cog.previous)
    numbers = re.compile(rf"{FIGURE}(?=<!--(\w+)-->)")
    if set(named) != set(figures) or named != numbers.findall(cog.previous):
        raise ValueError(f"{sorted(figures)} are given, and numbers have to stand before {named}")
    print(numbers.sub(lambda found: str(figures[found[1]]), cog.previous), end="")


def table(titles: str, rows: Iterable[Iterable[object]]) -> None:
    """Print a table, whose ``titles`` stand between bars as in Markdown."""
    print(titles)
    print("|" + "---|" * (titles.count("|") - 1))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def demo() -> None:
    """Print what the demo reached, which more than one page shows."""
    of = values("demo")
    rows = []
    for seed in (1, 2, 3):
        before, after = (of[f"seed {seed}: held-out sampled accuracy {when}"] for when in ("before", "after"))
        rise, gap = of[f"seed {seed}: rise"], of[f"seed {seed}: largest log-prob gap"]
        rows.append([seed, f"{before:.1f} %", f"{after:.1f} %", f"+{rise:.1f} points", power(gap)])
    table("| seed | held-out accuracy before | after | rise | largest log-prob gap |", rows)
