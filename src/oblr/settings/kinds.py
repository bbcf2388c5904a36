"""What a section of settings is, and how people say what a setting may be."""

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from oblr.kinds import LARGEST, MOST, Bound, Part


@dataclass(frozen=True)
class Parts:
    """A section of sections by any names, all of one kind."""

    of: Any


class Setting(NamedTuple):
    """Its kind (a type, :class:`~oblr.kinds.Part`, :class:`Parts`, or a section) and, with the unit, its meaning."""

    kind: Any
    meaning: str


#: Settings by their names; ``*`` stands for sections of any other name.
Section = dict[str, Setting]


def section(**settings: tuple[Any, str]) -> Section:
    return {name: Setting(*setting) for name, setting in settings.items()}


def in_words(kind: Any) -> str:
    """A kind as people say it: ``integer ≥ 1``."""
    if isinstance(kind, dict | Part | Parts):
        return "section or null" if isinstance(kind, Part) and kind.optional else "section"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return " ".join([in_words(arguments[0]), " and ".join(filter(None, map(_bound, arguments[1:])))]).rstrip()
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, arguments))
    if origin is list:
        return f"list: {in_words(arguments[0])}"
    if origin is dict:
        return f"section: {in_words(arguments[1])}"
    plain = {int: "integer", float: "number", bool: "true or false", str: "text", NoneType: "null"}
    return plain.get(kind, "anything")


def _bound(mark: Any) -> str:
    """A limit in signs; "" where it only keeps out slips of the finger."""
    if isinstance(mark, Bound):
        return "" if abs(mark.limit) in (MOST, LARGEST, 2**20, 2**32) else f"{mark.sign} {mark.limit:g}"
    return "of one or more"
