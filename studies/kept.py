"""Runs on disk: a table of columns, which is small, and beside it a file with a line for each run made since.

Squares of gradients are kept to 13 binary digits, 1 part in 8,192; learning rates to 10, means over groups to 9,
entropies to 8, and products of successive gradients, which are summed over steps, to 7. All else is as it was measured.
What no figure is of can be left out.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

#: Of every step: binary digits after the first that a number keeps of the 23 of float32.
ROUNDED = {"mean_square": 12, "square_mean": 8, "alignment": 6, "lr": 9, "entropy": 7}
#: Whose values are nearly all different, so that their bytes are sorted by place.
DIFFERENT = (*ROUNDED, "tokens")
#: Whose values come again: each is kept once. Means of rewards are float32's.
ALIKE = ("overrides", "reward", "best")
SCHEMA = pa.schema(
    {
        **{"task": pa.string(), "overrides": pa.list_(pa.string()), "revision": pa.string()},
        "accuracy": pa.map_(pa.string(), pa.float64()),
        "greedy": pa.float64(),
        **dict.fromkeys(("reward", "best", *ROUNDED), pa.list_(pa.float32())),
        **{"tokens": pa.list_(pa.int32()), "threads": pa.int16()},
        **dict.fromkeys(("rollout_seconds", "update_seconds", "second_moment", "rloo"), pa.float64()),
    }
)
#: What tells a run from others; all else is its record.
RUN = ("task", "overrides", "revision")


def lines_of(table: Path) -> Path:
    """Where runs are added that ``table`` has not yet: two processes may do so at once."""
    return table.with_suffix(".jsonl")


def add(table: Path, run: dict[str, Any]) -> None:
    with lines_of(table).open("a") as file:
        file.write(json.dumps(run) + "\n")


def added(table: Path) -> Iterator[dict[str, Any]]:
    """Runs that were added since the table was written."""
    lines = lines_of(table)
    yield from map(json.loads, lines.read_text().splitlines() if lines.exists() else [])


def read(table: Path) -> Iterator[dict[str, Any]]:
    """All runs, in the order in which they were made: ``task``, ``overrides``, ``revision`` and ``record``."""
    for row in pq.read_table(table).to_pylist(maps_as_pydicts="strict") if table.exists() else []:
        record = {name: value for name, value in row.items() if name not in RUN and value is not None}
        yield {name: row[name] for name in RUN} | {"record": record}
    yield from added(table)


def fold(table: Path, unused: Callable[[dict[str, Any]], Iterable[str]] = lambda run: ()) -> None:
    """Take the runs that were added into the table, while nobody adds any.

    Args:
        unused: what of a run is not kept.

    Raises:
        ValueError: a run has something that the table has no column for.
    """
    rows = [{name: run[name] for name in RUN} | run["record"] for run in read(table)]
    if unknown := set().union(*rows) - {*SCHEMA.names}:
        raise ValueError(f"{table} has no column for {', '.join(sorted(unknown))}")
    for row in rows:
        for name in unused(row):
            row.pop(name, None)
        row |= {name: rounded(row[name], digits) for name, digits in ROUNDED.items() if row.get(name) is not None}
    unfinished = table.with_suffix(".unfinished")
    pq.write_table(
        pa.Table.from_pylist(rows, SCHEMA),
        unfinished,
        compression="zstd",
        compression_level=22,
        use_dictionary=["task", "revision", *(f"{name}.list.element" for name in ALIKE)],
        column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in DIFFERENT},
    )
    unfinished.replace(table)
    lines_of(table).unlink(missing_ok=True)


def rounded(numbers: Sequence[float], digits: int) -> NDArray[np.float32]:
    """Numbers to so many binary digits after the first, so that the bytes of the others are all alike."""
    fractions, exponents = np.frexp(np.asarray(numbers, np.float64))
    return np.ldexp(np.round(fractions * 2.0 ** (digits + 1)), exponents - digits - 1).astype(np.float32)
