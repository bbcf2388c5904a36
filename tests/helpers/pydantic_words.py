"""What pydantic says of the kinds of settings: another reading of the same annotations, by other people."""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import annotated_types
from pydantic import ConfigDict, TypeAdapter, ValidationError

from oblr.kinds import NOT_EMPTY

MARKS = {"≥": annotated_types.Ge, ">": annotated_types.Gt, "≤": annotated_types.Le, "<": annotated_types.Lt}


def wanted(kind: Any, value: Any) -> list[str]:
    """What the value should be and is not, in the order in which pydantic says it; nothing where it is of its kind."""
    try:
        TypeAdapter(in_its_terms(kind), config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)
    except ValidationError as error:
        return [problem["msg"].removeprefix("Input ") for problem in error.errors()]
    return []


def in_its_terms(kind: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return Annotated[(in_its_terms(parts[0]), *map(mark, parts[1:]))]
    if origin in (Union, UnionType):
        return Union[tuple(map(in_its_terms, parts))]  # noqa: UP007
    return origin[tuple(map(in_its_terms, parts))] if origin in (list, dict) else kind


def mark(own: Any) -> Any:
    return annotated_types.MinLen(1) if own is NOT_EMPTY else MARKS[own.sign](own.limit)
