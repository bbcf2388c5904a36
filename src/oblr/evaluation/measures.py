"""The figures of a benchmark, and how those of two runs differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from oblr.evaluation.attempts import Attempts
from oblr.metrics.aggregate import Interval
from oblr.metrics.problems import Difference, bootstrap_interval, paired_difference
from oblr.metrics.tries import majority_at, pass_at

#: Figures that are no shares: a number of tokens, and a reward of any size.
UNBOUNDED = ("length", "reward")


def per_problem(attempts: Sequence[Attempts], ks: Sequence[int]) -> dict[str, np.ndarray]:
    """The values [P] whose means are a benchmark's figures.

    With verdicts ``avg@n`` (share of right ones among all n responses), ``pass@k`` and ``maj@k`` (for k > 1: with one
    try both are ``avg``), else ``reward``; ``length`` in tokens; ``truncated``, the share that the token limit cut.
    """
    n = len(attempts[0].rewards)
    verdicts, values = attempts[0].answers is not None, dict[str, list[Any]]()
    values[f"avg@{n}" if verdicts else "reward"] = [np.mean(a.rewards) for a in attempts]
    if verdicts:
        several = [k for k in ks if k > 1]
        values |= {f"pass@{k}": [pass_at(k, n, sum(r >= 1 for r in a.rewards)) for a in attempts] for k in several}
        values |= {f"maj@{k}": [majority_at(k, a.answers or [], a.rewards) for a in attempts] for k in several}
    values["length"] = [np.mean(a.lengths) for a in attempts]
    values["truncated"] = [1 - np.mean(a.finished) for a in attempts]
    return {name: np.array(column, dtype=float) for name, column in values.items()}


def measure(attempts: Sequence[Attempts], ks: Sequence[int]) -> dict[str, Interval]:
    """The figures with their 95 % intervals over problems."""
    return {
        name: bootstrap_interval(values, None if name in UNBOUNDED else (0.0, 1.0))
        for name, values in per_problem(attempts, ks).items()
    }


def differences(
    first: Sequence[Attempts], second: Sequence[Attempts], ks: Sequence[int]
) -> dict[str, tuple[float, float, Difference]]:
    """Of the same problems in the same order: both runs' figures and what the second has more."""
    ours, theirs = per_problem(first, ks), per_problem(second, ks)
    return {
        name: (ours[name].mean(), theirs[name].mean(), paired_difference(ours[name], theirs[name]))
        for name in ours
        if name in theirs
    }


def table(figures: dict[str, dict[str, Interval]], sizes: dict[str, int]) -> str:
    """Markdown: a row a benchmark; shares in percent."""
    columns = list(dict.fromkeys(name for row in figures.values() for name in row))
    lines = [_row(["benchmark", "problems", *map(_title, columns)]), _row(["---"] * (len(columns) + 2))]
    for benchmark, row in figures.items():
        cells = [_interval(name, row[name]) if name in row else "" for name in columns]
        lines.append(_row([benchmark, str(sizes[benchmark]), *cells]))
    return "\n".join(lines) + "\n"


def comparison_table(rows: dict[str, dict[str, tuple[float, float, Difference]]], sizes: dict[str, int]) -> str:
    """Markdown: a row a benchmark and figure; shares in percent, their differences in points."""
    lines = [
        _row(["benchmark", "problems", "figure", "first", "second", "difference", "p"]),
        _row(["---"] * 7),
    ]
    for benchmark, figures in rows.items():
        for name, (first, second, difference) in figures.items():
            cells = [_number(name, first), _number(name, second), _interval(name, Interval(*difference[:3]), "+")]
            lines.append(_row([benchmark, str(sizes[benchmark]), _title(name), *cells, f"{difference.p_value:.2g}"]))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _title(name: str) -> str:
    return {"length": "tokens", "reward": "reward"}.get(name, f"{name}, %")


def _number(name: str, value: float, sign: str = "") -> str:
    digits = {"length": f"{sign}.0f", "reward": f"{sign}.3f"}.get(name, f"{sign}.1f")
    return format(value if name in UNBOUNDED else 100 * value, digits)


def _interval(name: str, interval: Interval, sign: str = "") -> str:
    mean, low, high = (_number(name, value, sign) for value in interval)
    return f"{mean} [{low}, {high}]"
