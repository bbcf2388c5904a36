"""Arithmetic on what a number is known to be: an exact fraction, or an interval that holds it.

Where all that enters is rational, so is the result. Elsewhere it is an interval, or a box of complex numbers, whose
ends mpmath rounds outward at ``iv.prec`` bits: what two intervals do not share tells their numbers apart for certain.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from mpmath import iv, libmp
from mpmath.libmp.libmpi import mpci_log, mpci_pow_int, mpi_atan

#: Bits of the largest exact number, and of the largest exponent of two that anything may have.
EXACT, _LARGEST = 30_000, 10**7
#: The largest arguments of functions, of an exact factorial and of another one, and degrees of roots.
_ARGUMENT, _FACTORIAL, _GAMMA, _DEGREE = 10**6, 3000, 10**4, 1000
_ANGLE = 10**30
#: Denominators of powers that are roots.
_ROOTS = 64
_ENDLESS = (libmp.finf, libmp.fninf, libmp.fnan)

Value = Any  #: Fraction, iv.mpf or iv.mpc


class Undefined(Exception):
    """No value, or one that is too large to be worked out."""


class Untold(Undefined):
    """Two values that cannot be told apart, nor be shown to be the same."""


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Intervals made inside are rounded at so many bits."""
    before, iv.prec = iv.prec, bits
    try:
        yield
    finally:
        iv.prec = before


def interval(value: Value) -> Value:
    """The smallest interval around a fraction; intervals as they are."""
    if not isinstance(value, Fraction):
        return value
    ends = (libmp.from_rational(*value.as_integer_ratio(), iv.prec, way) for way in "fc")
    return iv.make_mpf(tuple(ends))


def checked(value: Value) -> Value:
    """Fractions that are too long as intervals, and boxes without height as real ones.

    Raises:
        Undefined: it has no end.
    """
    if isinstance(value, Fraction):
        return interval(value) if _bits(value) > EXACT else value
    ends = value._mpi_ if isinstance(value, iv.mpf) else [end for side in value._mpci_ for end in side]
    if any(end in _ENDLESS for end in ends):
        raise Undefined
    return value.real if isinstance(value, iv.mpc) and value._mpci_[1] == (libmp.fzero, libmp.fzero) else value


def ends(value: Value) -> tuple[Value, Value]:
    """Of a real value: intervals that are numbers."""
    if isinstance(value, iv.mpc):
        raise Undefined
    value = interval(value)
    return value.a, value.b


def sign(value: Value) -> int | None:
    """Of a real value; None where the interval holds zero and more."""
    if isinstance(value, Fraction):
        return (value > 0) - (value < 0)
    low, high = ends(value)
    return 1 if low > 0 else -1 if high < 0 else 0 if low == high else None


def largest(value: Value) -> Value:
    """Bound of the absolute value, a number."""
    return abs(interval(value)).b


def real(value: Value) -> bool:
    """Whether it may be a real number."""
    return not isinstance(value, iv.mpc) or sign(value.imag) is None


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _exact(*values: Value) -> bool:
    return all(isinstance(value, Fraction) for value in values)


def _whole(*values: Value) -> bool:
    return all(isinstance(value, Fraction) and value.denominator == 1 for value in values)


def add(one: Value, other: Value) -> Value:
    return one + other if _exact(one, other) else interval(one) + interval(other)


def multiply(one: Value, other: Value) -> Value:
    return one * other if _exact(one, other) else interval(one) * interval(other)


def divide(one: Value, other: Value) -> Value:
    return one / other if _exact(one, other) else interval(one) / interval(other)


def power(base: Value, exponent: Value) -> Value:
    """The principal value. 0⁰ has none."""
    if isinstance(exponent, Fraction) and exponent.denominator <= _ROOTS:
        if exponent.denominator > 1:
            base = _principal_root(base, exponent.denominator)
        return _whole_power(base, exponent.numerator)
    if isinstance(base, Fraction) and base == 0 and sign(exponent) == 1:
        return base
    return exp(multiply(exponent, ln(base)))


def _whole_power(base: Value, exponent: int) -> Value:
    if _exact(base):
        if base == 0 and exponent == 0:
            raise Undefined
        if _bits(base) * abs(exponent) <= EXACT:
            return base**exponent
    base = interval(base)
    if abs(exponent) * _scale(base) > _LARGEST:
        raise Undefined
    if isinstance(base, iv.mpf):
        return iv.make_mpf(libmp.mpi_pow_int(base._mpi_, exponent, iv.prec))
    return iv.make_mpc(mpci_pow_int(base._mpci_, exponent, iv.prec))


def _scale(value: Value) -> int:
    """The largest exponent of two of its ends."""
    sides = [value] if isinstance(value, iv.mpf) else [value.real, value.imag]
    return max(abs(exponent + bits) for side in sides for _, _, exponent, bits in side._mpi_)


def root(value: Value, degree: Value) -> Value:
    """Odd ones of negative numbers are real."""
    if not _whole(degree) or not 0 < degree < _DEGREE:
        raise Undefined
    n = int(degree)
    if n % 2 and not isinstance(value, iv.mpc):
        if sign(value) == -1:
            return -root(-value, degree)
        if sign(value) is None:
            low, high = ends(value)
            return iv.mpf((-_real_root(-low, n).b, _real_root(high, n).b))
    return _principal_root(value, n)


def _principal_root(value: Value, n: int) -> Value:
    if isinstance(value, iv.mpc):
        return exp(ln(value) / n)
    positive = sign(value)
    if positive is None:  # either of them, or anything between
        low, high = ends(value)
        up = _real_root(-low, n).b if low < 0 else iv.zero
        return iv.mpc(iv.mpf((0, max(_real_root(high, n).b, up, key=_key))), iv.mpf((0, up)))
    if positive >= 0:
        return _real_root(value, n)
    size = _real_root(-value, n)
    if n == 2:
        return iv.mpc(0, interval(size))
    angle = iv.pi / n
    return interval(size) * iv.mpc(iv.cos(angle), iv.sin(angle))


def _key(end: Value) -> Fraction:
    return Fraction(*libmp.to_rational(end._mpi_[0]))


def _real_root(value: Value, n: int) -> Value:
    """Of what is not negative."""
    if isinstance(value, Fraction):
        over, under = (_whole_root(part, n) for part in value.as_integer_ratio())
        if over**n == value.numerator and under**n == value.denominator:
            return Fraction(over, under)
    low, high = interval(value)._mpi_
    if n == 2:
        return iv.make_mpf(libmp.libmpi.mpi_sqrt((low, high), iv.prec))
    return _widened(tuple(libmp.mpf_nthroot(end, n, iv.prec + 10, way) for end, way in ((low, "f"), (high, "c"))))


def _whole_root(value: int, n: int) -> int:
    """The largest whole number whose n-th power is at most ``value``; Newton's method."""
    if n == 2:
        return math.isqrt(value)
    guess = 1 << -(-value.bit_length() // n)
    while (better := ((n - 1) * guess + value // guess ** (n - 1)) // n) < guess:
        guess = better
    return guess


def _widened(ends: tuple[Any, ...]) -> Value:
    """For functions that mpmath rounds to within a few units of the last bit."""
    unit = iv.mpf(2) ** (4 - iv.prec)
    return iv.make_mpf(ends) * iv.mpf((1 - unit.b, 1 + unit.b))


def _bounded(value: Value, most: int = _ARGUMENT) -> Value:
    value = interval(value)
    if not largest(value) <= most:
        raise Undefined
    return value


def exp(value: Value) -> Value:
    if value == 0:
        return Fraction(1)
    return iv.exp(_bounded(value))


def ln(value: Value) -> Value:
    if isinstance(value, iv.mpc):
        return iv.make_mpc(mpci_log(value._mpci_, iv.prec))
    if value == 1:
        return Fraction(0)
    positive = sign(value)
    if not positive:
        raise Undefined
    return iv.ln(interval(value)) if positive > 0 else iv.mpc(iv.ln(interval(-value)), +iv.pi)


def absolute(value: Value) -> Value:
    return abs(value)


def _arctan(value: Value) -> Value:
    ends(value)
    return iv.make_mpf(mpi_atan(interval(value)._mpi_, iv.prec))


def _arcsin(value: Value) -> Value:
    """``2 arctan(x / (1 + √(1 − x²)))``."""
    return 2 * _arctan(divide(value, add(Fraction(1), _real_root(_not_negative(1 - value * value), 2))))


def _not_negative(value: Value) -> Value:
    if sign(value) in (0, 1):
        return value
    raise Undefined


def _circular(make: Callable[[Value, Value], Value]) -> Callable[[Value], Value]:
    def function(value: Value) -> Value:
        value = _bounded(value, _ARGUMENT if isinstance(value, iv.mpc) else _ANGLE)
        return make(iv.sin(value), iv.cos(value))

    return function


def _hyperbolic(make: Callable[[Value, Value], Value]) -> Callable[[Value], Value]:
    def function(value: Value) -> Value:
        up, down = interval(exp(value)), interval(exp(-value))
        return make((up - down) / 2, (up + down) / 2)

    return function


def factorial(value: Value) -> Value:
    if _whole(value) and 0 <= value < _FACTORIAL:
        return Fraction(math.factorial(int(value)))
    low, high = ends(value)
    if low < -100 or high > _GAMMA:
        raise Undefined
    return _widened(iv.gamma(interval(value) + 1)._mpi_)


def double_factorial(value: Value) -> Value:
    if not _whole(value) or not -1 <= value < _FACTORIAL:
        raise Undefined
    return Fraction(math.prod(range(int(value), 0, -2)))


def binomial(over: Value, under: Value) -> Value:
    if _whole(under) and 0 <= under < _FACTORIAL:
        k = int(under)
        if _whole(over) and 0 <= over < _FACTORIAL:
            return Fraction(math.comb(int(over), k))
        if k <= 40:
            return math.prod((add(over, Fraction(-i)) / (i + 1) for i in range(k)), start=Fraction(1))
    return divide(factorial(over), multiply(factorial(under), factorial(add(over, -under))))


OPERATIONS: dict[str, Callable[..., Value]] = {
    **{"+": add, "*": multiply, "/": divide, "^": power, "root": root, "abs": absolute, "neg": lambda value: -value},
    **{"exp": exp, "ln": ln, "factorial": factorial, "factorial2": double_factorial, "binom": binomial},
    **{"sin": _circular(lambda sin, cos: sin), "cos": _circular(lambda sin, cos: cos)},
    **{"tan": _circular(lambda sin, cos: sin / cos), "cot": _circular(lambda sin, cos: cos / sin)},
    **{"sec": _circular(lambda sin, cos: 1 / cos), "csc": _circular(lambda sin, cos: 1 / sin)},
    **{"arctan": _arctan, "arcsin": _arcsin, "arccos": lambda value: iv.pi / 2 - _arcsin(value)},
    **{"sinh": _hyperbolic(lambda sinh, cosh: sinh), "cosh": _hyperbolic(lambda sinh, cosh: cosh)},
    "tanh": _hyperbolic(lambda sinh, cosh: sinh / cosh),
}
