"""What expressions without variables are, and whether two of them are the same number.

Nothing is simplified, so nothing can hang: an expression is worked out from its leaves, exactly where all that enters
is rational, else in intervals (``intervals.py``). Intervals that do not meet are different numbers, whatever their
size. Two that meet are the same number once both are known so closely that a difference would have shown: for fractions
and roots by the root bound of Burnikel, Funke, Mehlhorn, Schirra and Schmitt ("A separation bound for real algebraic
expressions", Algorithmica 2009), else to four times the bits that all their numbers have (Richardson's uniformity
conjecture, "The uniformity conjecture", CCA 2000, asks for fewer). What takes more bits than the limit is not told.
"""

import math
from fractions import Fraction

from mpmath import iv

from oblr.answers.expressions import Expression, call, number
from oblr.answers.intervals import (
    OPERATIONS,
    Undefined,
    Untold,
    Value,
    absolute,
    add,
    checked,
    interval,
    largest,
    multiply,
    precision,
    real,
    sign,
)

#: Bits at which everything is worked out first, and by which two intervals that meet are close.
START, CLOSE = 128, 64
#: Bits of two numbers that are to be told apart: of roots, of other functions (that many between them), and of
#: factorials of what is no whole number, which mpmath works out slowly.
_ROOTS, _FUNCTIONS, _GAMMA = 20_000, 24_000, 500
_FEWEST, _FIRST, _TIMES = 256, 1000, 4
_GROWING = ("exp", "sinh", "cosh", "tanh")
_WHOLE = ("floor", "ceil", "factorial", "factorial2", "binom")


def evaluate(expression: Expression, bits: int = START) -> Value:
    """The value of an expression, by intervals of so many bits where it is not exact.

    Raises:
        Undefined: a variable, a division by zero, a pole, something that is no number, or too large a one.
    """
    try:
        with precision(bits):
            return _worked_out(expression)
    except (ArithmeticError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise Undefined from error


def _worked_out(expression: Expression) -> Value:
    op, args = expression
    if op == "number":
        return args[0]
    if op == "symbol":
        return {"π": +iv.pi, "e": +iv.e, "i": iv.j}[args[0]]
    values = [_worked_out(arg) for arg in args]
    if op in ("floor", "ceil"):
        down = _floor(values[0], args[0]) if op == "floor" else -_floor(-values[0], call("neg", args[0]))
        return Fraction(down)
    return checked(OPERATIONS[op](*values))


def _floor(value: Value, expression: Expression) -> int:
    if isinstance(value, Fraction):
        return math.floor(value)
    if isinstance(value, iv.mpc) or largest(value) > iv.mpf(2) ** (iv.prec // 2):
        raise Undefined
    low, high = (math.floor(_fraction(end)) for end in (value.a, value.b))
    if low == high or (high == low + 1 and equal(expression, number(high))):
        return high
    raise Undefined


def _fraction(end: Value) -> Fraction:
    sign, mantissa, exponent, _ = end._mpi_[0]
    return Fraction(-mantissa if sign else mantissa) * Fraction(2) ** exponent


def equal(one: Expression, other: Expression, sampled: bool = False) -> bool:
    """Whether they are the same number; ``sampled``: at one of several points, where fewer bits do.

    Raises:
        Undefined: one of them is none.
        Untold: it would take more bits than the limit.
    """
    values = evaluate(one), evaluate(other)
    if apart(*values):
        return False
    if all(isinstance(value, Fraction) for value in values):
        return True
    needed, limit = _needed(one, other, sampled)
    bits = min(needed, _FIRST) + CLOSE
    while bits <= 2 * limit:
        values = evaluate(one, bits), evaluate(other, bits)
        if apart(*values, bits):
            return False
        if needed <= min(bits, limit) and near(*values, Fraction(1, 2**needed), bits):
            return True
        bits = min(4 * bits, needed + CLOSE) if bits < needed <= limit else 2 * bits
    raise Untold


def apart(one: Value, other: Value, bits: int = START) -> bool:
    """Whether they are different numbers for certain."""
    with precision(bits):
        gap = add(one, -other)
    sides = (gap.real, gap.imag) if isinstance(gap, iv.mpc) else (gap,)
    return any(sign(side) in (1, -1) for side in sides)


def near(one: Value, other: Value, distance: Value, bits: int = START) -> bool:
    """Whether they are for certain no further from each other."""
    with precision(bits):
        return bool(largest(add(one, -other)) <= interval(distance).a)


def meet(one: Value, other: Value) -> bool:
    """Whether they are the same as far as their intervals show, which are narrow."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    if apart(one, other):
        return False
    little = Fraction(1, 2**CLOSE)
    return near(one, other, little**2) or near(one, other, multiply(little, largest(one)))


def within(one: Expression, other: Expression, tolerance: Fraction, most: Fraction | None = None) -> bool:
    """Whether they are real numbers that differ by at most ``tolerance`` of the first, and by at most ``most``."""
    try:
        values = evaluate(one), evaluate(other)
    except Undefined:
        return False
    if not all(isinstance(value, Fraction | iv.mpf) for value in values):
        return False
    with precision(START):
        distance = multiply(absolute(values[0]), tolerance)
    return near(*values, distance) and (most is None or near(*values, most))


def constant(expression: Expression) -> Value | None:
    """Its value where it has one and no variables, a Fraction where it is known to be rational; else None."""
    try:
        return evaluate(expression)
    except Undefined:
        return None


def signum(expression: Expression) -> int:
    """1 or −1, or 0 where it is neither for certain."""
    try:
        value = evaluate(expression)
        return (sign(value) or 0) if real(value) else 0
    except Undefined:
        return 0


def _needed(one: Expression, other: Expression, sampled: bool) -> tuple[int, int]:
    """Bits after the point that tell the two apart, and the most that are worked out."""
    functions = _count(one) + _count(other)
    limit = _FUNCTIONS // max(functions, 3) if functions else _ROOTS
    needed = _separation(one, other) if not functions else None
    if needed is None or needed > limit or sampled:
        sizes = max(_FEWEST, _TIMES * (_size(one) + _size(other)))
        needed = min(needed, sizes) if needed and sampled else sizes
    if any(_has_gamma(side) for side in (one, other)):
        needed, limit = max(_FEWEST, needed * 3 // 4), _GAMMA
    return needed, limit


def _count(expression: Expression) -> int:
    """Functions in it that are neither rational nor roots, and constants that are no roots of anything."""
    op = expression.op
    if op in ("symbol", "number"):
        return int(expression.args in (("π",), ("e",)))
    inner = sum(map(_count, expression.parts()))
    if op in _WHOLE:
        return inner + (0 if isinstance(evaluate(expression), Fraction) else 1)
    if op == "^":
        exponent = constant(expression.args[1])
        return inner + (0 if isinstance(exponent, Fraction) and exponent.denominator <= 64 else 1)
    return inner + (op not in ("+", "*", "/", "neg", "abs", "root"))


def _has_gamma(expression: Expression) -> bool:
    if expression.op in ("factorial", "binom") and not isinstance(evaluate(expression), Fraction):
        return True
    return any(map(_has_gamma, expression.parts()))


def _separation(one: Expression, other: Expression) -> int | None:
    """Of two numbers of roots and fractions: b such that they are the same, or differ by 2⁻ᵇ at least."""
    roots: dict[Expression, int] = {}
    over, under = _over_and_under(call("+", one, call("neg", other)), roots)
    degree = math.prod(roots.values())
    return None if degree > 1000 else math.ceil(under + over * (degree**2 - 1)) + 1


def _over_and_under(expression: Expression, roots: dict[Expression, int]) -> tuple[float, float]:
    """Logarithms (base 2) of the paper's u and l; ``roots`` gets every root in it, and its degree."""
    op, args = expression
    value = constant(expression)
    if isinstance(value, Fraction):
        return _bits(value.numerator), _bits(value.denominator)
    if op == "symbol":  # i
        roots[expression] = 2
        return 0.0, 0.0
    if op == "abs" and isinstance(constant(args[0]), iv.mpc):
        roots[expression] = 4  # √(z z̄)
    (a, b), *rest = (_over_and_under(arg, roots) for arg in args[: 1 if op in ("^", "root") else None])
    if op in ("neg", "abs"):
        return a, b
    if op in ("^", "root"):
        exponent = constant(args[1])
        assert isinstance(exponent, Fraction)  # of others _count has counted one
        over, degree = (1, int(exponent)) if op == "root" else exponent.as_integer_ratio()
        if degree > 1:
            roots[call("root", args[0], number(degree))] = degree
        a, b = (abs(over) * part / degree for part in (a, b))
        return (a, b) if over > 0 else (b, a)
    (c, d) = rest[0]
    if op == "+":
        return max(a + d, b + c) + 1, b + d
    return (a + c, b + d) if op == "*" else (a + d, b + c)


def _size(expression: Expression) -> int:
    """Bits of all numbers in it, of a power as if it were written out."""
    op, args = expression
    if op == "number":
        return _bits(args[0].numerator) + _bits(args[0].denominator)
    if op == "symbol":
        return 2
    if op == "^" or op in _WHOLE:
        value = evaluate(expression)
        if isinstance(value, Fraction):
            return _bits(value.numerator) + _bits(value.denominator)
        if op in _WHOLE:
            return 20
    inner = 1 + sum(map(_size, args))
    if op == "^":
        return inner + _times(args[1]) * _size(args[0])
    return inner + 2 * _times(args[0]) if op in _GROWING else inner


def _times(exponent: Expression) -> int:
    return math.ceil(_fraction(largest(evaluate(exponent))))


def _bits(value: int) -> int:
    return max(1, abs(value).bit_length())


def warm_up() -> None:
    """mpmath finds its constants once."""
    for bits in (START, 2000):
        for name in "πe":
            evaluate(Expression("symbol", (name,)), bits)
