"""Tables of any origin: a Hub data set, a local copy of one, or a JSONL, Parquet or CSV file."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from pyarrow import ArrowException

from oblr.errors import SettingError


@dataclass(frozen=True)
class Rows:
    """``records[i]`` maps columns to values; ``places[i]`` says where it stands, e.g. ``train.jsonl line 3``."""

    records: Sequence[dict[str, Any]]
    places: Sequence[str]


def read_rows(path: str, name: str | None, split: str, root: str | None = None) -> Rows:
    """All rows of a table.

    Args:
        path: a file, by its ending; a folder that holds a copy of a Hub data set, or one that ``save_to_disk`` has
            written; or a Hub id.
        name, split: configuration and split; a file has neither.
        root: a folder that holds copies of Hub data sets under their ids, instead of the Hub.

    Raises:
        SettingError: it cannot be had, has no rows, or one that cannot be read.
    """
    place = str(Path(root, path)) if root is not None else path
    read = FORMATS.get(Path(place).suffix)
    if read is not None:
        rows = read(Path(place))
    elif Path(place).is_file():
        raise SettingError("data.path", f"{place} is no table", f"give a file that ends in {', '.join(FORMATS)}")
    elif root is not None and not Path(place).is_dir():
        raise SettingError("data.root", f"there is no {place}", f"put a copy of the hub's {path} there")
    else:
        rows = _data_set(place, name, split)
    if not rows.records:
        raise SettingError("data.path", f"{place} has no problems", "give a table with at least one row")
    return rows


def _data_set(path: str, name: str | None, split: str) -> Rows:
    title = f"{path} [{split}]" if name is None else f"{path}/{name} [{split}]"
    saved = any(Path(path, mark).exists() for mark in ("dataset_dict.json", "state.json"))
    try:
        if saved:
            found = load_from_disk(path)
            data = found[split] if isinstance(found, DatasetDict) else found
        else:
            data = load_dataset(path, name, split=split)
    except Exception as error:  # the library lets connection, file and value errors of many packages through
        where = "cannot be read" if Path(path).exists() else "is no file, and the hub does not give it out"
        raise SettingError("data.path", f"{title} {where}: {error}", "check name, split and network") from error
    assert isinstance(data, Dataset)
    return Rows(data.to_list(), [f"{title} row {number}" for number in range(1, len(data) + 1)])


def _text(path: Path) -> str:
    try:
        return (content := path.read_bytes()).decode().removeprefix("\ufeff")
    except OSError as error:
        raise SettingError("data.path", f"cannot read {path}: {error.strerror}", "give another file") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingError(
            "data.path", f"cannot read {path}: line {line} is not UTF-8 (byte {error.start})", "save it as UTF-8"
        ) from error


def _jsonl(path: Path) -> Rows:
    records, places = [], []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SettingError("data.path", f"{path} line {number} is no JSON: {error}", "mend the line") from error
        if not isinstance(row, dict):
            raise SettingError("data.path", f"{path} line {number} is not a JSON object", "mend the line")
        records.append(row)
        places.append(f"{path} line {number}")
    return Rows(records, places)


def _csv(path: Path) -> Rows:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    records, places = [], []
    try:
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
        records = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        raise SettingError("data.path", f"cannot read {path}: {error}", "give another file") from error
    return Rows(records, [f"{path} row {number}" for number in range(1, len(records) + 1)])


FORMATS: dict[str, Callable[[Path], Rows]] = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
