"""Tables of any origin: a Hub data set, a local copy of one, or a file."""

from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

from oblr.data.bounded import bounded, out_of_memory
from oblr.data.formats import FORMATS, Rows, read_file, records
from oblr.errors import SettingError
from oblr.run.inputs import digest_of, digest_of_rows, note_data


def read_rows(path: str, name: str | None, split: str, root: str | None = None, limit_mib: int | None = None) -> Rows:
    """All rows of a table.

    Args:
        path: a file, by its ending; a folder that holds a copy of a Hub data set, or one that ``save_to_disk`` has
            written; or a Hub id.
        name: configuration of a Hub data set; a file has none.
        split: of a Hub data set; a file has none.
        root: folder that holds copies of Hub data sets under their ids, instead of the Hub.
        limit_mib: most memory that reading may take, MiB; None: 512, or 100 times the file's size.

    Raises:
        SettingError: it cannot be had, has no rows, or one that cannot be read.
    """
    place = str(Path(root, path)) if root is not None else path
    with bounded(place, limit_mib):
        rows = read_file(Path(place))
        if rows is not None:
            note_data(place, digest_of(Path(place)))
        elif Path(place).is_file():
            raise SettingError("data.path", f"{place} is no table", f"give a file that ends in {', '.join(FORMATS)}")
        elif root is not None and not Path(place).is_dir():
            raise SettingError("data.root", f"there is no {place}", f"put a copy of the hub's {path} there")
        else:
            rows = _data_set(place, name, split)
            note_data("/".join(filter(None, (place, name, split))), digest_of_rows(rows.records))
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
        if out_of_memory(error):
            raise MemoryError from None
        where = "cannot be read" if Path(path).exists() else "is no file, and the hub does not give it out"
        raise SettingError("data.path", f"{title} {where}: {error}", "check name, split and network") from error
    assert isinstance(data, Dataset)
    return Rows(records(data.with_format("arrow")[:]), [f"{title} row {number}" for number in range(1, len(data) + 1)])
