"""Tables of any origin: a Hub data set, a local copy of one, or a file."""

from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

from oblr.data.formats import FORMATS, Rows, read_file, records
from oblr.errors import SettingError


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
    rows = read_file(Path(place))
    if rows is None:
        if Path(place).is_file():
            raise SettingError("data.path", f"{place} is no table", f"give a file that ends in {', '.join(FORMATS)}")
        if root is not None and not Path(place).is_dir():
            raise SettingError("data.root", f"there is no {place}", f"put a copy of the hub's {path} there")
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
    return Rows(records(data.with_format("arrow")[:]), [f"{title} row {number}" for number in range(1, len(data) + 1)])
