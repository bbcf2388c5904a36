"""What a setting may be: types with ranges, and sections. All other files of this room are made of these."""

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import BaseMetadata, Ge, Gt, Le, Lt, MinLen

#: Numbers beyond these are slips of the finger, and overflow somewhere.
MOST, LARGEST = 2**31 - 1, 1e9

Count = Annotated[int, Ge(1), Le(MOST)]
Natural = Annotated[int, Ge(0), Le(MOST)]
#: of what is held at once: processes, prompts, responses
Few = Annotated[int, Ge(1), Le(2**20)]
Number = Annotated[float, Ge(-LARGEST), Le(LARGEST)]
Positive = Annotated[float, Gt(0), Le(LARGEST)]
NonNegative = Annotated[float, Ge(0), Le(LARGEST)]
#: learning rates: one of a thousand moves no policy to anywhere
Rate = Annotated[float, Gt(0), Le(1e3)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
RelativeError = Annotated[float, Ge(0), Lt(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
#: vLLM samples at 0.01 where it is told less
Temperature = Annotated[float, Ge(0.01), Le(100)]
Seed = Annotated[int, Ge(0), Lt(2**32)]
Text = str | None
#: strings that there may be none of, but none of them empty
Words = list[Annotated[str, MinLen(1)]]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Part:
    """A section that names a class: its settings are that class's.

    Attributes:
        room: the package that ours are from; others may be anybody's.
        optional: whether null or an empty section leaves it out.
    """

    room: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Parts:
    """A section of sections by any names, all of one kind."""

    of: Any


class Setting(NamedTuple):
    """Its kind (a type, :class:`Part`, :class:`Parts`, or a section of settings) and, with the unit, its meaning."""

    kind: Any
    meaning: str


#: Settings by their names; ``*`` stands for sections of any other name.
Section = dict[str, Setting]


def section(**settings: tuple[Any, str]) -> Section:
    return {name: Setting(*setting) for name, setting in settings.items()}


#: What processes that score may reach.
READABLE = (Words, "files and folders that a reward reads, besides code")
TRUST = (bool, "whether a reward has the run's own rights, network and files: then a response may have them as well")


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


def _bound(bound: BaseMetadata) -> str:
    """A limit in signs; "" where it only keeps out slips of the finger."""
    for kind, name, sign in ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<")):
        if isinstance(bound, kind):
            limit = getattr(bound, name)
            return "" if abs(limit) in (MOST, LARGEST, 2**20, 2**32) else f"{sign} {limit:g}"
    return "of one or more"
