"""What an answer can be; plain data. ``text`` is how it is spelled, without what does not count."""

from dataclasses import dataclass, field

from oblr.answers.expressions import Expression
from oblr.answers.units import Unit


@dataclass(frozen=True)
class Quantity:
    """A number or an expression, ``unit`` and ``percent`` apart.

    ``product`` is the whole with its unit as a variable, where the unit is a letter that may be one.
    """

    text: str
    expression: Expression
    unit: Unit | None = None
    percent: bool = False
    product: Expression | None = None


@dataclass(frozen=True)
class Words:
    """An answer in words."""

    text: str


@dataclass(frozen=True)
class Choice:
    """The letter of an option."""

    text: str


@dataclass(frozen=True)
class Based:
    """Digits in the base that stands beside them."""

    text: str
    digits: str
    base: int


@dataclass(frozen=True)
class Group:
    """Ordered, in brackets that count: a tuple, an interval, a list; ``::`` is a ratio."""

    brackets: str
    items: "tuple[Answer, ...]"


@dataclass(frozen=True)
class Several:
    """Unordered: a set in braces, or answers side by side."""

    items: "tuple[Answer, ...]"
    braces: bool


@dataclass(frozen=True)
class Joined:
    """A union of sets and intervals."""

    parts: "tuple[Answer, ...]"


@dataclass(frozen=True)
class Matrix:
    """A matrix, row by row."""

    rows: "tuple[tuple[Answer, ...], ...]"


@dataclass(frozen=True)
class Named:
    """``x = value`` and ``f(x) = value``, or, where it is ``among``, ``x ∈ value``.

    A function's arguments have the same names in ``value`` whatever they are called; ``bare`` is as it is written.
    """

    name: str
    value: "Answer"
    among: bool = False
    bare: "Answer | None" = None


@dataclass(frozen=True)
class Relation:
    """``left op right``; ``op`` is one of = < ≤ ≠. ``value`` is the side that is a number, where the other names it."""

    op: str
    left: Expression
    right: Expression
    value: "Quantity | None" = field(default=None, compare=False)


@dataclass(frozen=True)
class Rounded:
    """``exact ≈ rounded``."""

    exact: "Answer"
    rounded: "Answer"


@dataclass(frozen=True)
class Unread:
    """Nothing equals it but its own spelling."""

    text: str


Answer = Quantity | Words | Choice | Based | Group | Several | Joined | Matrix | Named | Relation | Rounded | Unread
