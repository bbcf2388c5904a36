"""Whether two expressions are the same: exactly where they are rational, else to 40 digits, at several points.

Nothing is simplified, so nothing can hang: an expression is worked out from its leaves, once a point. Where all that
enters is rational, so is the value, in exact fractions; elsewhere mpmath computes with 60 digits, and with 400 where
so much cancels that 60 cannot tell a difference from none.
"""

import math
import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath

from oblr.rewards.expressions import Expression, call

#: Points at which two expressions must agree, of those that are tried.
AGREEING, TRIED = 3, 8
_DIGITS, _MORE_DIGITS = 60, 400
#: Bits of the largest exact number, and the largest arguments of functions.
_BITS, _FACTORIAL, _EXPONENT = 30_000, 3000, 10**6
_WHOLE = ("floor", "ceil", "factorial", "binom")
#: Names of whole numbers, beside functions of such.
_COUNTS = frozenset("ijklmnpqdNMKLRTrst")

Value = Any  #: Fraction, mpf or mpc


class Undefined(Exception):
    """No value at this point, or one that is too large to be worked out."""


def same_values(left: Expression, right: Expression) -> bool:
    """Whether they agree at points where both are defined, and real if one of them is."""
    if left == right:
        return True
    agreeing, needed = 0, 1 if not left.symbols() | right.symbols() else AGREEING
    for point in _points(left, right):
        try:
            if not _agree(left, right, point):
                return False
        except Undefined:
            continue
        agreeing += 1
        if agreeing == needed:
            return True
    return False


def ratio(left: Expression, right: Expression) -> Value | None:
    """What ``left / right`` is at all points where both are defined, where that is one real number and not 0."""
    if left.symbols() != right.symbols() or not left.symbols():
        return None
    found: list[Value] = []
    for point in _points(left, right):
        try:
            one, other = (evaluate(side, point) for side in (left, right))
        except Undefined:
            continue
        if not one or not other:
            return None
        here = _over(one, other)
        if not _real(here) or (found and not _close(found[0], here)):
            return None
        found.append(here)
        if len(found) == AGREEING + 1:
            return found[0]
    return None


def constant(expression: Expression) -> Value | None:
    """Its value where it has one and no variables; else None."""
    if expression.symbols():
        return None
    try:
        return evaluate(expression, {})
    except Undefined:
        return None


def close_to(value: Value, other: Value, tolerance: Fraction) -> bool:
    """Whether they differ by at most ``tolerance`` of the first."""
    if isinstance(value, Fraction) and isinstance(other, Fraction):
        return abs(value - other) <= abs(value) * tolerance
    with mpmath.workdps(_DIGITS):
        return bool(abs(_float(value) - _float(other)) <= abs(_float(value)) * _float(tolerance))


def difference(left: Expression, right: Expression) -> Expression:
    return call("+", left, call("neg", right))


def _points(left: Expression, right: Expression) -> Iterator[dict[str, Fraction]]:
    names = sorted(left.symbols() | right.symbols())
    whole = left.has(*_WHOLE) or right.has(*_WHOLE)
    return ({name: _coordinate(name, trial, whole) for name in names} for trial in range(TRIED if names else 1))


@lru_cache(maxsize=4096)
def _coordinate(name: str, trial: int, whole: bool) -> Fraction:
    draw = random.Random(f"{name}/{trial}")
    if whole and name[0] in _COUNTS:
        return Fraction(draw.randint(2, 40))
    # Half of the points lie where roots and logarithms are real.
    return Fraction(draw.randint(301, 2999), 997) * (1 if trial % 2 == 0 else draw.choice((1, -1)))


def _agree(left: Expression, right: Expression, point: Mapping[str, Fraction]) -> bool:
    one, other = (evaluate(side, point) for side in (left, right))
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    if max(abs(_float(one)), abs(_float(other))) < mpmath.mpf(10) ** -(_DIGITS // 2):  # much cancels, or they are tiny
        one, other = (evaluate(side, point, _MORE_DIGITS) for side in (left, right))
        if max(abs(_float(one)), abs(_float(other))) < mpmath.mpf(10) ** -(_MORE_DIGITS * 3 // 4):
            return True
    if _real(one) != _real(other):
        raise Undefined
    return _close(one, other)


def _real(value: Value) -> bool:
    return not isinstance(value, mpmath.mpc) or abs(value.imag) <= abs(value) * mpmath.mpf(10) ** -(_DIGITS * 2 // 3)


def _close(one: Value, other: Value) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    with mpmath.workdps(_DIGITS):
        one, other = _float(one), _float(other)
        if mpmath.isinf(one) or mpmath.isinf(other):
            return bool(one == other)
        return bool(abs(one - other) <= max(abs(one), abs(other)) * mpmath.mpf(10) ** -(_DIGITS * 2 // 3))


def _float(value: Value) -> Value:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _over(one: Value, other: Value) -> Value:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one / other
    with mpmath.workdps(_DIGITS):
        return _float(one) / _float(other)


@lru_cache(maxsize=64)
def _constant(name: str, digits: int) -> Value:
    with mpmath.workdps(digits):
        return {"π": +mpmath.pi, "e": +mpmath.e, "i": mpmath.mpc(0, 1), "∞": mpmath.inf}[name]


def evaluate(expression: Expression, point: Mapping[str, Fraction], digits: int = _DIGITS) -> Value:
    """
    Raises:
        Undefined: a division by zero, a pole, something that is no number, or too large a one.
    """
    with mpmath.workdps(digits):
        try:
            value = _worked_out(expression, point, digits)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError, mpmath.libmp.NoConvergence) as error:
            raise Undefined from error
        if not isinstance(value, Fraction) and mpmath.isnan(value):
            raise Undefined
    return value


def _worked_out(expression: Expression, point: Mapping[str, Fraction], digits: int) -> Value:
    op, args = expression
    if op == "number":
        return args[0]
    if op == "symbol":
        return point[args[0]] if args[0] in point else _constant(args[0], digits)
    values = [_worked_out(arg, point, digits) for arg in args]
    if op in ("+", "*", "/"):
        if not all(isinstance(value, Fraction) for value in values):
            values = [_float(value) for value in values]
        one, other = values
        value = one + other if op == "+" else one * other if op == "*" else one / other
    elif op == "neg":
        return -values[0]
    elif op == "abs":
        return abs(values[0])
    else:
        value = _OPERATIONS.get(op, _elementary(op))(*values)
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > _BITS:
        return _float(value)
    return value


def _power(base: Value, power: Value) -> Value:
    exact = isinstance(power, Fraction) and power.denominator == 1 and isinstance(base, Fraction)
    if exact and max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(power.numerator) <= _BITS:
        return base ** int(power)
    base, power = _float(base), _float(power)
    if mpmath.isinf(base) or mpmath.isinf(power) or (base and abs(power * mpmath.log(abs(base))) > 10 * _EXPONENT):
        raise Undefined
    return base**power


def _root(value: Value, degree: Value) -> Value:
    """Odd ones of negative numbers are real, and square roots of squares exact."""
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 0 < degree < 1000:
        raise Undefined
    if isinstance(value, Fraction) and degree == 2 and value >= 0:
        over, under = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if over * over == value.numerator and under * under == value.denominator:
            return Fraction(over, under)
    value = _float(value)
    if degree % 2 and not isinstance(value, mpmath.mpc) and value < 0:
        return -mpmath.root(-value, int(degree))
    return mpmath.root(value, int(degree))


def _floor(value: Value) -> Value:
    if isinstance(value, Fraction):
        return Fraction(math.floor(value))
    if not _real(value) or abs(value) > mpmath.mpf(10) ** (_DIGITS // 3):
        raise Undefined
    near = mpmath.nint(value.real)  # a whole number but for rounding
    return Fraction(
        int(near if abs(value.real - near) < mpmath.mpf(10) ** -(_DIGITS // 2) else mpmath.floor(value.real))
    )


def _counting(exact: Any, gamma: Any) -> Any:
    def function(*values: Value) -> Value:
        if all(isinstance(value, Fraction) and value.denominator == 1 and 0 <= value < _FACTORIAL for value in values):
            return Fraction(exact(*map(int, values)))
        if max(abs(_float(value)) for value in values) > _FACTORIAL**2:
            raise Undefined
        return gamma(*map(_float, values))

    return function


def _elementary(name: str) -> Any:
    def function(value: Value) -> Value:
        value = _float(value)
        if not hasattr(mpmath, name.replace("arc", "a")) or (name != "ln" and abs(value) > _EXPONENT):
            raise Undefined
        return getattr(mpmath, name.replace("arc", "a"))(value)

    return function


_OPERATIONS = {
    "^": _power,
    "root": _root,
    "floor": _floor,
    "ceil": lambda value: -_floor(-value),
    "factorial": _counting(math.factorial, mpmath.factorial),
    "binom": _counting(math.comb, mpmath.binomial),
}


def warm_up() -> None:
    """mpmath finds its constants once."""
    for digits in (_DIGITS, _MORE_DIGITS):
        for name in "πe":
            _constant(name, digits)
