"""Types with ranges, in which constructors say what numbers and words a setting may be, and the check of both.

:mod:`oblr.settings.declared` reads them without importing the constructor, :func:`checked` checks what it is given.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen

from oblr.errors import SettingError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

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
Word = Annotated[str, MinLen(1)]
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
    """Raises SettingError where a value is none of its kind, and says in pydantic's words what would be."""
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(value)
    except ValidationError as error:
        wanted = dict.fromkeys(problem["msg"].removeprefix("Input ") for problem in error.errors())
        raise SettingError(setting, f"{shown(value)} cannot work", f"it {', or '.join(wanted)}") from error


def shown(value: object) -> str:
    """A value as an error shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]} … {text[-10:]}"


@functools.cache
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import ConfigDict, TypeAdapter  # which processes that score do without

    return TypeAdapter(kind, config=ConfigDict(strict=True, allow_inf_nan=False))
