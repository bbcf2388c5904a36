"""What an answer's arithmetic is once it has been read."""

from fractions import Fraction
from typing import Any, NamedTuple

#: Digits of an exponent of ten.
LONGEST_POWER = 3
_CONSTANTS = frozenset("πei∞")


class Expression(NamedTuple):
    """``op`` on ``args``: a number (a Fraction, and whether it is a decimal), a symbol (its name), or an operation."""

    op: str
    args: tuple[Any, ...]

    def parts(self) -> list["Expression"]:
        return [] if self.op in ("number", "symbol") else list(self.args)

    def symbols(self) -> frozenset[str]:
        """Names of its variables."""
        if self.op == "symbol":
            return frozenset(self.args) - _CONSTANTS
        return frozenset[str]().union(*(part.symbols() for part in self.parts()))

    def has(self, *ops: str) -> bool:
        return self.op in ops or any(part.has(*ops) for part in self.parts())

    def mapped(self, change: dict["Expression", "Expression"]) -> "Expression":
        """With some of its parts replaced."""
        if self in change:
            return change[self]
        return Expression(self.op, tuple(part.mapped(change) for part in self.parts()) or self.args)


def number(value: Fraction | int, decimal: bool = False) -> Expression:
    return Expression("number", (Fraction(value), decimal))


def symbol(name: str) -> Expression:
    return Expression("symbol", (name,))


def call(op: str, *args: Expression) -> Expression:
    return Expression(op, args)


def ordered(expression: Expression) -> Expression:
    """With the terms of every sum, and the factors of every product, in one order."""
    parts = [ordered(part) for part in expression.parts()]
    if expression.op in ("+", "*"):
        flat = [inner for part in parts for inner in (part.args if part.op == expression.op else [part])]
        return Expression(expression.op, tuple(sorted(flat, key=repr)))
    return Expression(expression.op, tuple(parts) or expression.args)


def either_sign(expression: Expression) -> list[Expression]:
    """Both values of an expression with ±; the lower signs of all ± and ∓ belong together."""
    if not expression.has("±", "∓"):
        return [expression]
    return [_signed(expression, upper) for upper in (True, False)]


def _signed(expression: Expression, upper: bool) -> Expression:
    if expression.op in ("±", "∓"):
        inner = _signed(expression.args[0], upper)
        return inner if (expression.op == "±") == upper else call("neg", inner)
    parts = tuple(_signed(part, upper) for part in expression.parts())
    return Expression(expression.op, parts or expression.args)


class Written(NamedTuple):
    """A number that is written out; ``decimal`` where it has a decimal point."""

    value: Fraction
    decimal: bool


def written(expression: Expression) -> Written | None:
    """The number, where nothing is left to work out but a fraction and a power of ten; else None."""
    op, args = expression
    if op == "number":
        return Written(*args)
    if op == "neg":
        one = written(args[0]) if args[0].op != "neg" else None
        return one and Written(-one.value, one.decimal)
    if op == "/" and all(part.op == "number" or (part.op == "neg" and part.args[0].op == "number") for part in args):
        over, under = (written(part) for part in args)
        return Written(over.value / under.value, False) if over and under and under.value else None
    if op == "^" and args[0] == number(10):
        power = written(args[1])
        if power and power.value.denominator == 1 and abs(power.value) < 10**LONGEST_POWER:
            return Written(Fraction(10) ** int(power.value), False)
    if op == "*" and args[1].op == "^":
        one, ten = written(args[0]), written(args[1])
        return Written(one.value * ten.value, one.decimal) if one and ten else None
    return None
