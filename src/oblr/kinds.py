"""Types with ranges, in which constructors say what numbers and words a setting may be, and the check of both.

:mod:`oblr.settings.declared` reads them without importing the constructor, :func:`checked` checks what it is given.
"""

import functools
import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from oblr.errors import SettingError

#: What a number is to a bound that it keeps, by the bound's sign, and the words for that.
SIGNS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "≥": (operator.ge, "greater than or equal to"),
    ">": (operator.gt, "greater than"),
    "≤": (operator.le, "less than or equal to"),
    "<": (operator.lt, "less than"),
}


@dataclass(frozen=True)
class Bound:
    """In ``Annotated``: numbers ``x`` of which ``x ≥ limit``, or another of :data:`SIGNS`."""

    sign: str
    limit: float


Ge, Gt, Le, Lt = (functools.partial(Bound, sign) for sign in SIGNS)
#: In ``Annotated``: a text or list that has something in it.
NOT_EMPTY = object()

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
Word = Annotated[str, NOT_EMPTY]
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


T = TypeVar("T")
GIVEN = object()
#: An argument that is no setting: whoever constructs gives it.
Given = Annotated[T, GIVEN]


def checked(section: str) -> Callable[[type[T]], type[T]]:
    """Have a class refuse numbers and words that the annotations of its constructor exclude.

    A configuration is checked as a whole before; this is for who constructs in Python, where a number out of range
    would be a wrong result without a word. What is neither number, word nor switch is left to the type checker.

    Args:
        section: of the configuration, that a class of this kind stands in.

    Raises:
        SettingError: the constructor then does, and names ``section`` and argument.
    """

    def decorate(cls: type[T]) -> type[T]:
        construct = cls.__init__
        arguments = list(inspect.signature(construct).parameters.values())
        names = [argument.name for argument in arguments[1:]]
        kinds = {argument.name: argument.annotation for argument in arguments if _is_plain(argument.annotation)}

        @functools.wraps(construct)
        def check_and_construct(self: T, *args: Any, **kwargs: Any) -> None:
            given = dict(zip(names, args, strict=False)) | kwargs
            for name, value in given.items():
                if name in kinds:
                    check(f"{section}.{name}", kinds[name], value)
            construct(self, *args, **kwargs)

        cls.__init__ = check_and_construct  # type: ignore[assignment, method-assign]
        return cls

    return decorate


def _is_plain(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _is_plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return all(map(_is_plain, get_args(kind)))
    return get_origin(kind) is Literal or kind in (int, float, bool, NoneType)


def check(setting: str, kind: Any, value: Any) -> None:
    """Raises SettingError where a value is none of its kind, and says what would be.

    Nothing is converted, but for an integer where a number is asked for. What is not finite is no number.
    """
    if wanted := dict.fromkeys(_wanted(kind, value)):
        raise SettingError(setting, f"{shown(value)} cannot work", f"it {', or '.join(wanted)}")


#: How errors call what is of a plain type.
PLAIN = {
    int: "a valid integer",
    float: "a valid number",
    bool: "a valid boolean",
    str: "a valid string",
    list: "a valid list",
    dict: "a valid dictionary",
    NoneType: "None",
}


def _wanted(kind: Any, value: Any) -> list[str]:
    """What a value or parts of it should be, and are not; of several kinds that there are to choose from, all."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _wanted(parts[0], value) or _broken(kind.__metadata__, value)
    if origin in (Union, UnionType):
        each = [_wanted(part, value) for part in parts]
        words = [word for part, words in zip(parts, each, strict=True) if part is not NoneType for word in words]
        return words if all(each) else []
    if origin is Literal:
        *others, last = map(repr, parts)
        return [] if value in parts else [f"should be {' or '.join([', '.join(others), last] if others else [last])}"]
    if kind is Any:
        return []
    plain = origin or kind
    right: Any = Real if plain is float else plain
    if not isinstance(value, right) or (isinstance(value, bool) and plain is not bool):
        return [f"should be {PLAIN[plain]}"]
    if plain is float and not abs(value) < math.inf:
        return ["should be a finite number"]
    inside: list[tuple[Any, Any]] = []
    if plain is list:
        inside = [(parts[0], one) for one in value]
    elif plain is dict:
        inside = [pair for item in value.items() for pair in zip(parts, item, strict=True)]
    return [word for part, one in inside for word in _wanted(part, one)]


def _broken(marks: tuple[Any, ...], value: Any) -> list[str]:
    """What a value of the right type should be by the marks of ``Annotated``, and is not."""
    if NOT_EMPTY in marks and not value:
        return ["should not be empty"]
    limits = [(*SIGNS[mark.sign], mark.limit) for mark in marks if isinstance(mark, Bound)]
    return [f"should be {words} {limit:.15g}" for keeps, words, limit in limits if not keeps(value, limit)]


def shown(value: object) -> str:
    """A value as an error shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]} … {text[-10:]}"
