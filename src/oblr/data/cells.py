"""What the cells of a row say: found by column or dotted path, and refused where they say nothing."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from oblr.data.formats import Written
from oblr.errors import SettingError

#: What a number has of decimals that single precision has not.
_DOUBLE = re.compile(r"-?(?=[\d.]{12})\d+\.\d+(e[+-]?\d+)?")


def cell(row: Mapping[str, Any], path: str, place: str) -> Any:
    """What stands in the column ``path``, or below columns: ``extra.answer``, ``messages.0.content``.

    Raises:
        SettingError: there is no such thing in the row.
    """
    if path in row:
        return row[path]
    value: Any = row
    for step in path.split("."):
        try:
            if isinstance(value, list) and not step.isdecimal():
                raise IndexError(step)  # what int() takes besides: -1, 0_1
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            known = f"name one of {sorted(map(str, row))}, or what is below them, as in messages.0.content"
            raise SettingError("data.columns", f"{place} has no column {path!r}", known) from error
    return value


def said(value: Any, path: str, place: str, several: bool = False) -> str:
    """A cell as text, numbers as they are written.

    Args:
        several: whether it may be a list of texts and numbers.

    Raises:
        SettingError: null, no number, nested or empty.
    """
    if several and isinstance(value, list) and value:
        return ", ".join(said(one, path, place) for one in value)
    if not (what := _nothing(value)):
        if isinstance(value, bool):
            return str(value).lower()  # as JSON has it
        return f"{value:f}" if isinstance(value, Decimal) else single(str(value).strip())
    raise SettingError("data.columns", f"{place} has {what} in column {path!r}", "mend or remove the row")


def single(text: str) -> str:
    """As numbers of single precision print: ``0.1`` for 0.10000000149011612, which is 0.1 in 32 bits; else the text.

    Of 2²⁹ numbers of double precision one looks so by chance. One whose digits all stand there, as 0.0001220703125 for
    2⁻¹³, is what it says, unless six digits are enough for it.
    """
    if not _DOUBLE.fullmatch(text) or text != repr(value := float(text)):
        return text
    with np.errstate(over="ignore"):
        number = np.float32(value)
    short = np.format_float_positional(number, trim="-")
    enough = len(short.strip("-").replace(".", "").strip("0")) <= 6
    return short if float(number) == value and (enough or Decimal(text) != Decimal(value)) else text


def _nothing(value: Any) -> str:
    """What a cell holds instead of a text; "" where it says something."""
    match value:
        case None:
            return "null"
        case str():
            missing = value.strip().lower() == "nan"  # as a table's missing value is written to CSV
            return f"{value.strip()}, no number," if missing else "" if value.strip() else "no text"
        case Written():  # too large for a float, some are infinite there
            return ""
        case float() | Decimal():
            return "" if math.isfinite(value) else f"{value}, no number,"
        case int():
            return ""
        case list():
            return "a list" if value else "no text"
        case _:
            return f"a {type(value).__name__}, no text,"
