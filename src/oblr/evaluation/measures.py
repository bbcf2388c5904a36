"""The figures of a benchmark, and how those of two runs differ."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from oblr.errors import SettingError
from oblr.evaluation.attempts import Attempts
from oblr.metrics.aggregate import Interval
from oblr.metrics.problems import Difference, bootstrap_interval, paired_difference
from oblr.metrics.tries import majority_at, pass_at
from oblr.problem import Problem

#: Figures that are no shares: a number of tokens, and a reward of any size.
UNBOUNDED = ("length", "reward")


def are_verdicts(attempts: Sequence[Attempts]) -> bool:
    """Whether the reward calls responses right or wrong, and has given each of these 1 or 0."""
    return all(one.answers is not None and {0.0, 1.0}.issuperset(one.rewards) for one in attempts)


def per_problem(attempts: Sequence[Attempts], ks: Sequence[int], verdicts: bool | None = None) -> dict[str, np.ndarray]:
    """The values [P] whose means are a benchmark's figures.

    With verdicts ``avg@n`` (share of right ones among all n responses), ``pass@k`` and ``maj@k`` (for k > 1: with one
    try both are ``avg``), else ``reward``; ``length`` in tokens; ``truncated``, the share that the token limit cut.

    Args:
        verdicts: None: as :func:`are_verdicts` says of these.
    """
    n, values = len(attempts[0].rewards), dict[str, list[Any]]()
    verdicts = are_verdicts(attempts) if verdicts is None else verdicts
    values[f"avg@{n}" if verdicts else "reward"] = [np.mean(a.rewards) for a in attempts]
    if verdicts:
        several = [k for k in ks if k > 1]
        values |= {f"pass@{k}": [pass_at(k, n, sum(r >= 1 for r in a.rewards)) for a in attempts] for k in several}
        values |= {f"maj@{k}": [majority_at(k, a.answers or [], a.rewards) for a in attempts] for k in several}
    values["length"] = [np.mean(a.lengths) for a in attempts]
    values["truncated"] = [1 - np.mean(a.finished) for a in attempts]
    return {name: np.array(column, dtype=float) for name, column in values.items()}


def measure(attempts: Sequence[Attempts], ks: Sequence[int], verdicts: bool | None = None) -> dict[str, Interval]:
    """The figures with their 95 % intervals over problems; ``verdicts`` as for :func:`per_problem`."""
    return {
        name: bootstrap_interval(values, None if name in UNBOUNDED else (0.0, 1.0))
        for name, values in per_problem(attempts, ks, verdicts).items()
    }


def by_group(attempts: Sequence[Attempts], values: Sequence[Any]) -> dict[str, list[Attempts]]:
    """The problems with the same value, in its order."""
    names = sorted(set(values), key=lambda value: (isinstance(value, str), value is None, value))
    return {str(name): [one for one, value in zip(attempts, values, strict=True) if value == name] for name in names}


def groups(
    benchmarks: Mapping[str, Sequence[Problem]], by: str | Sequence[str] | None
) -> dict[str, dict[str, list[Any]]]:
    """Of each benchmark those of the columns ``by`` that all its problems have, and what they say of each.

    Raises:
        SettingError: no benchmark has one of them, or it says something that is neither text nor a number.
    """
    names = [by] if isinstance(by, str) else by or []
    found: dict[str, dict[str, list[Any]]] = {benchmark: {} for benchmark in benchmarks}
    for name in names:
        for benchmark, problems in benchmarks.items():
            if all(name in problem.metadata for problem in problems):
                found[benchmark][name] = [_group(name, problem) for problem in problems]
        if not any(name in columns for columns in found.values()):
            known = sorted({str(key) for problems in benchmarks.values() for key in problems[0].metadata})
            raise SettingError("by", f"no benchmark has a column {name!r}", f"use some of {', '.join(known)}")
    return found


def _group(name: str, problem: Problem) -> str | int | float | None:
    value = problem.metadata[name]
    if isinstance(value, str | int | float | None):
        return value
    raise SettingError("by", f"{name} of problem {problem.id} is no group: {value!r:.60}", "name another column")


def differences(
    first: Sequence[Attempts], second: Sequence[Attempts], ks: Sequence[int], verdicts: bool | None = None
) -> dict[str, tuple[float, float, Difference]]:
    """Of the same problems in the same order: both runs' figures and what the second has more."""
    verdicts = are_verdicts([*first, *second]) if verdicts is None else verdicts
    ours, theirs = per_problem(first, ks, verdicts), per_problem(second, ks, verdicts)
    return {
        name: (ours[name].mean(), theirs[name].mean(), paired_difference(ours[name], theirs[name]))
        for name in ours
        if name in theirs
    }


class Row(NamedTuple):
    """Of a table: what its figures are of, the model where there are several first, and of how many problems."""

    labels: Sequence[str]
    problems: int
    figures: Mapping[str, Interval]


def table(rows: Sequence[Row]) -> str:
    """A row a benchmark; shares in percent. What is no score has its interval beside it in the summary alone."""
    columns = list(dict.fromkeys(name for row in rows for name in row.figures))
    several = max(len(row.labels) for row in rows) > 1
    titles = [*(["model"] if several else []), "benchmark", "problems", *map(_title, columns)]
    cells = [[_cell(name, row.figures[name]) if name in row.figures else "" for name in columns] for row in rows]
    return markdown(titles, [[*row.labels, str(row.problems), *own] for row, own in zip(rows, cells, strict=True)])


def comparison_table(rows: dict[str, dict[str, tuple[float, float, Difference]]], sizes: dict[str, int]) -> str:
    """A row a benchmark and figure; shares in percent, their differences in points."""
    cells = []
    for benchmark, figures in rows.items():
        for name, (first, second, difference) in figures.items():
            numbers = [_number(name, first), _number(name, second), _interval(name, Interval(*difference[:3]), "+")]
            cells.append([benchmark, str(sizes[benchmark]), _title(name), *numbers, f"{difference.p_value:.2g}"])
    return markdown(["benchmark", "problems", "figure", "first", "second", "difference", "p"], cells)


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns stand below each other in a terminal, too."""
    drawn = Table(*titles, box=box.MARKDOWN)
    for row in rows:
        drawn.add_row(*row)
    page = io.StringIO()
    Console(file=page, width=10_000, markup=False, emoji=False, highlight=False).print(drawn)
    return page.getvalue().strip() + "\n"


def _title(name: str) -> str:
    return {"length": "tokens", "reward": "reward"}.get(name, f"{name}, %")


def _cell(name: str, interval: Interval) -> str:
    return _number(name, interval.mean) if name in ("length", "truncated") else _interval(name, interval)


def _number(name: str, value: float, sign: str = "") -> str:
    digits = {"length": f"{sign}.0f", "reward": f"{sign}.3f"}.get(name, f"{sign}.1f")
    return format(value if name in UNBOUNDED else 100 * min(max(value, -1), 1), digits)


def _interval(name: str, interval: Interval, sign: str = "") -> str:
    mean, low, high = (_number(name, value, sign) for value in interval)
    return f"{mean} [{low}, {high}]"
