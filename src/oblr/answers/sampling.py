"""Whether two expressions with variables are the same function: they are worked out at points and compared there.

The points are the same whatever the variables are called: a variable is known by the place where it first appears.
They have both signs, several magnitudes and no whole coordinates; where something is rounded, whole ones, too, and of
functions made of pieces some whose coordinates lie between the same two whole numbers. Where a value is real on one
side alone, or on none, is outside the domain, unless i stands there.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from oblr.answers.expressions import Expression, call, number, ordered, symbol
from oblr.answers.intervals import Undefined, Untold, real
from oblr.answers.values import equal, evaluate, meet, signum

#: Points at which two expressions must be shown to be the same, of those at which they must agree.
PROVEN, SMOOTH, KINKED = 3, 8, 32
#: From this one on all coordinates of a point lie between the same two whole numbers.
TOGETHER = 22
_I = symbol("i")
_SMOOTH = frozenset(["+", "*", "neg", "/", "^", "sin", "cos", "exp", "sinh", "cosh", "number", "symbol"])
#: Of absolute values, where the signs of the first points are all positive, all negative, and in turns; some are
#: multiples of the largest number in the expressions.
_MAGNITUDES = ((0.3, 3), (0.3, 3), (1, 10), (0.02, 0.4), (3, 40), (0.2, 1.9), (1, 2.9), (100, 2000), (1e5, 1e7))
_SCALED = (1.9, 2.9)


def same_values(left: Expression, right: Expression) -> bool:
    """Whether they agree at all points where both are defined, and there are enough of them."""
    if left == right:
        return True
    verdict = _verdict(left, right)
    return ordered(left) == ordered(right) if verdict is None else verdict


def _verdict(left: Expression, right: Expression) -> bool | None:
    """None where it cannot be told."""
    try:
        if not names(left, right):
            return equal(left, right)
    except Undefined:
        return None
    everywhere = _contains(_I, left) or _contains(_I, right)
    proven = unreal = untold = 0
    kinked = _kinked(left) or _kinked(right)
    for point in points(left, right):
        one, other = (side.mapped(point) for side in (left, right))
        try:
            values = evaluate(one), evaluate(other)
            within = everywhere or all(map(real, values))
            if not within and any(map(real, values)):
                continue
            if not within:  # of principal values, where there are no others
                unreal += 1 if meet(*values) else -KINKED
            elif proven >= PROVEN:
                if not meet(*values):
                    return False
            elif not equal(one, other, sampled=True):
                return False
            else:
                proven += 1
                if proven == PROVEN and not kinked:
                    return True
        except Untold:
            untold += 1
            if untold == PROVEN:
                return None
        except Undefined:
            continue
    return proven >= PROVEN or proven + unreal >= PROVEN or None


def proportion(left: Expression, right: Expression) -> int:
    """The sign of ``left / right``, where that is the same real number at all points; else 0."""
    if left.symbols() != right.symbols() or not left.symbols():
        return 0
    first: tuple[Expression, Expression] | None = None
    found, way = 0, 0
    kinked = _kinked(left) or _kinked(right)
    for point in points(left, right):
        one, other = (side.mapped(point) for side in (left, right))
        try:
            values = evaluate(one), evaluate(other)
            if not all(map(real, values)):
                continue
            if first is None:
                way = signum(one) * signum(other)
                first = (one, other) if way else None
                found += bool(way)
                continue
            if not equal(call("*", one, first[1]), call("*", other, first[0]), sampled=True):
                return 0
        except Undefined:
            continue
        found += 1
        if found > PROVEN and not kinked:
            break
    return way if found > PROVEN else 0


def names(left: Expression, right: Expression) -> list[Expression]:
    """Their variables, in the order in which they appear."""
    found: dict[Expression, None] = {}
    for part in (*_leaves(left), *_leaves(right)):
        if part.op == "symbol" and part.symbols():
            found[part] = None
    return list(found)


def points(left: Expression, right: Expression) -> Iterator[dict[Expression, Expression]]:
    variables = names(left, right)
    rounded = left.has("floor", "ceil") or right.has("floor", "ceil")
    whole = _counting(left) & _counting(right)
    largest = max([abs(leaf.args[0]) for leaf in (*_leaves(left), *_leaves(right)) if leaf.op == "number"], default=0)
    scale = float(min(largest, 10**9)) if largest > 10 else 1.0
    for trial in range(KINKED if _kinked(left) or _kinked(right) or whole else SMOOTH):
        kind = "whole" if rounded and trial in (2, 5, 9) else ""
        yield {
            name: number(_coordinate(place, trial, "counted" if name in whole else kind, scale))
            for place, name in enumerate(variables)
        }


@lru_cache(maxsize=4096)
def _coordinate(place: int, trial: int, kind: str, scale: float) -> Fraction:
    draw = random.Random(f"{place}/{trial}")
    signs = (1, -1, (-1) ** place, -((-1) ** place))
    positive = signs[trial] if trial < len(signs) else draw.choice((1, -1))
    if kind == "counted":
        return Fraction(positive * draw.randint(1, 24) + (place + trial) % 2)
    if trial >= TOGETHER:
        return random.Random(f"together/{trial}").randint(-5, 5) + Fraction(draw.randint(1, 96), 97)
    if kind == "whole":
        return Fraction(positive * (60 if trial == 2 else 7 if trial == 5 else 0))
    low, high = _MAGNITUDES[trial if trial < len(signs) else 2 + (trial + 2 * place) % (len(_MAGNITUDES) - 2)]
    value = draw.uniform(low, high) * (scale if high in _SCALED else 1)
    under = draw.choice((7, 11, 13, 17, 19, 23)) if value > 1 else 97
    value = round(value * under)
    return Fraction(positive * (value + (value % under == 0)), under)


def _leaves(expression: Expression) -> Iterator[Expression]:
    if not expression.parts():
        yield expression
    for part in expression.parts():
        yield from _leaves(part)


def _contains(leaf: Expression, expression: Expression) -> bool:
    return any(part == leaf for part in _leaves(expression))


def _kinked(expression: Expression) -> bool:
    """Whether it may be made of pieces: absolute values, rounding, roots."""
    if expression.op not in _SMOOTH:
        return True
    if expression.op == "^":
        base, exponent = expression.args
        if not base.symbols():
            return _kinked(exponent)
        if not _is_whole(exponent):
            return True
    return any(map(_kinked, expression.parts()))


def _is_whole(exponent: Expression) -> bool:
    try:
        value = evaluate(exponent)
    except Undefined:
        return False
    return isinstance(value, Fraction) and value.denominator == 1


def _counting(expression: Expression) -> frozenset[Expression]:
    """Variables in the exponent of a negative number, which are whole or the power is no real one."""
    found = frozenset[Expression]().union(*map(_counting, expression.parts()))
    if expression.op == "^":
        base, exponent = expression.args
        if not base.symbols() and signum(base) < 0:
            found |= frozenset(map(symbol, exponent.symbols()))
    return found
