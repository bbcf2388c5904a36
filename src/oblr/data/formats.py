"""Files of rows: JSON Lines, JSON arrays, CSV, each also gzipped, and Parquet."""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from pyarrow import ArrowException

from oblr.errors import SettingError

#: How Arrow calls numbers of single and half precision, in lists and structures too.
_NARROW = re.compile(r"\b(?:half)?float\b")
#: Brackets within brackets that a row may have.
DEEPEST = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Rows:
    """``records[i]`` maps columns to values; ``places[i]`` says where it stands, e.g. ``train.jsonl line 3``."""

    records: Sequence[dict[str, Any]]
    places: Sequence[str]


class Written(float):
    """A number of JSON that is said as the file has it: ``0.50``, and digits that no float holds."""

    def __new__(cls, text: str | float) -> "Written":
        number = super().__new__(cls, text)
        number.text = str(text)
        return number

    text: str

    def __str__(self) -> str:
        return self.text


def read_file(path: Path) -> Rows | None:
    """The rows of a file, by how its name ends; None where that is none of :data:`FORMATS`.

    Raises:
        SettingError: it cannot be read, or one of its rows cannot.
    """
    return next((read(path) for ending, read in FORMATS.items() if path.name.endswith(ending)), None)


def title(path: str) -> str | None:
    """A file's name without its ending; None where that is none of :data:`FORMATS`."""
    name = Path(path).name
    return next((name.removesuffix(ending) for ending in FORMATS if name.endswith(ending)), None)


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingError(
            "data.path", f"cannot read {path}: line {line} is not UTF-8 (byte {error.start})", "save it as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:  # a broken gzip raises each of them
        why = getattr(error, "strerror", None) or error
        raise SettingError("data.path", f"cannot read {path}: {why}", "give another file") from error


def _json(text: str, place: str) -> Any:
    try:
        value = json.loads(text, parse_float=Written, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise SettingError("data.path", f"{place} is no JSON: {error}", "mend it") from error
    if text.count("[") + text.count("{") > DEEPEST and _deeper(value):
        raise SettingError("data.path", f"{place} is nested more than {DEEPEST} deep", "mend it")
    return value


def _deeper(value: Any) -> bool:
    """Than :data:`DEEPEST`, where what goes on with it would fail."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for node in level
            if isinstance(node, list | dict)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, list | dict)
        ]
    return bool(level)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has two values of {twice!r}")
    return found


def _row(row: Any, halves: bool, place: str) -> dict[str, Any]:
    """Checked; ``halves``: whether half a character may be in it."""
    if not isinstance(row, dict):
        raise SettingError("data.path", f"{place} is not a JSON object", "mend it")
    if halves:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise SettingError("data.path", f"{place} has half a character, {half}", "mend it") from error
    return row


def _jsonl(path: Path) -> Rows:
    return _lines(path, _text(path))


def _lines(path: Path, text: str) -> Rows:
    records, places = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            places.append(f"{path} line {number}")
            records.append(_row(_json(line, places[-1]), bool(_SURROGATE.search(line)), places[-1]))
    return Rows(records, places)


def _array(path: Path) -> Rows:
    text = _text(path)
    if not text.lstrip().startswith("["):  # many call JSON Lines so
        return _lines(path, text)
    found = _json(text, str(path))
    places = [f"{path} row {number}" for number in range(1, len(found) + 1)]
    halves = bool(_SURROGATE.search(text))
    return Rows([_row(row, halves, place) for row, place in zip(found, places, strict=True)], places)


def _csv(path: Path) -> Rows:
    csv.field_size_limit(sys.maxsize)  # the library's own is 128 KiB
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    records, places = [], []
    try:
        names = reader.fieldnames or ()
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise SettingError("data.path", f"{path} has two columns {twice[0]!r}", "rename one of them")
        for row in reader:
            place = f"{path} line {reader.line_num}"
            if None in row or None in row.values():
                raise SettingError("data.path", f"{place} has not as many fields as the header", "mend the line")
            records.append(row)
            places.append(place)
    except csv.Error as error:
        raise SettingError("data.path", f"{path} after line {reader.line_num}: {error}", "mend it") from error
    return Rows(records, places)


def _parquet(path: Path) -> Rows:
    try:
        rows = records(pyarrow.parquet.read_table(path, use_threads=False, pre_buffer=False))
    except MemoryError:  # one of Arrow's own is an ArrowException, too
        raise
    except (OSError, ArrowException, UnicodeDecodeError) as error:
        raise SettingError("data.path", f"cannot read {path}: {error}", "give another file") from error
    return Rows(rows, [f"{path} row {number}" for number in range(1, len(rows) + 1)])


def records(table: pyarrow.Table) -> list[dict[str, Any]]:
    """The rows of a table of Arrow's; numbers of single and half precision are said as those print, ``0.1``."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for column in table.schema:
        if _NARROW.search(str(column.type)):
            for row in rows:
                row[column.name] = _printed(row[column.name], column.type)
    return rows


def _printed(value: Any, kind: pyarrow.DataType) -> Any:
    if value is None:
        return None
    if pyarrow.types.is_float32(kind) or pyarrow.types.is_float16(kind):
        number = kind.to_pandas_dtype()(value)
        return Written(np.format_float_positional(number, trim="-")) if np.isfinite(number) else float(value)
    if pyarrow.types.is_struct(kind):
        return {field.name: _printed(value[field.name], field.type) for field in kind}
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [_printed(one, kind.value_type) for one in value]
    return value


FORMATS: dict[str, Callable[[Path], Rows]] = {
    **{
        f"{name}{gz}": read
        for name, read in ((".jsonl", _jsonl), (".json", _array), (".csv", _csv))
        for gz in ("", ".gz")
    },
    ".parquet": _parquet,
}
