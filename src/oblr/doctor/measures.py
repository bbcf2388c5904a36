"""The statistics behind the findings: intervals and tails, in plain Python."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

#: Of a normal distribution: what lies beyond is 5 %, both ends together.
Z = 1.96
#: What a normal distribution's median absolute deviation is multiplied with to give its standard deviation.
MAD = 1.4826


class Interval(NamedTuple):
    """An estimate with the ends of its interval, 95 % if nothing else is said."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2g} [{self.low:.2g}, {self.high:.2g}]"


def share(hits: int, of: int, z: float = Z) -> Interval:
    """A share by Wilson's interval, which holds at its ends, too; [0, 1] where there is nothing."""
    if of == 0:
        return Interval(math.nan, 0.0, 1.0)
    p, wide = hits / of, z**2 / of
    middle = (p + wide / 2) / (1 + wide)
    half = z / (1 + wide) * math.sqrt(p * (1 - p) / of + wide / (4 * of))
    return Interval(p, max(middle - half, 0.0), min(middle + half, 1.0))


def mean(values: Sequence[float], z: float = Z) -> Interval:
    """A mean, by its standard error; without end of fewer than two values."""
    if len(values) < 2:
        return Interval(values[0] if values else math.nan, -math.inf, math.inf)
    middle = fmean(values)
    error = math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))
    return Interval(middle, middle - z * error, middle + z * error)


def ratio(above: Sequence[float], below: Sequence[float], z: float = Z) -> Interval:
    """``Σ above / Σ below`` over steps, by the jackknife; without end of fewer than three steps.

    A ratio of sums, and no mean of ratios: of single steps these have no mean where ``below`` comes near 0.
    """
    total, whole, count = math.fsum(above), math.fsum(below), len(above)
    if count < 3 or whole == 0:
        return Interval(math.nan, -math.inf, math.inf)
    rest = [whole - b for b in below]
    if min(abs(r) for r in rest) < 1e-12 * abs(whole):
        return Interval(total / whole, -math.inf, math.inf)
    left = [(total - a) / r for a, r in zip(above, rest, strict=True)]
    middle = fmean(left)
    error = math.sqrt((count - 1) / count * sum((value - middle) ** 2 for value in left))
    return Interval(total / whole, total / whole - z * error, total / whole + z * error)


def slope(values: Sequence[float], z: float = Z) -> Interval:
    """Of a straight line through the values of successive steps, by least squares; without end of fewer than five."""
    count = len(values)
    if count < 5:
        return Interval(math.nan, -math.inf, math.inf)
    at = [i - (count - 1) / 2 for i in range(count)]
    wide, middle = sum(x * x for x in at), fmean(values)
    steep = sum(x * y for x, y in zip(at, values, strict=True)) / wide
    left = sum((y - middle - steep * x) ** 2 for x, y in zip(at, values, strict=True))
    error = math.sqrt(left / (count - 2) / wide)
    return Interval(steep, steep - z * error, steep + z * error)


def log_tail(of: int, least: int, p: float) -> float:
    """``log₁₀ P(X ≥ least)`` of a binomial count, by its largest terms."""
    if least <= 0 or p >= 1:
        return 0.0
    if p <= 0:
        return -math.inf
    terms = [math.log(math.comb(of, k)) + k * math.log(p) + (of - k) * math.log1p(-p) for k in range(least, of + 1)]
    top = max(terms)
    return (top + math.log(math.fsum(math.exp(term - top) for term in terms))) / math.log(10)


def unusual(values: Sequence[float], least: int = 8) -> list[float]:
    """How far the logarithm of each positive value lies above the median of those before, in robust deviations.

    0 where fewer than ``least`` are before it. The deviation is that of the median absolute deviation, and at least
    a tenth: what has hardly moved so far does not make every change a wonder.
    """
    found, before = list[float](), list[float]()
    for value in values:
        log = math.log(value) if value > 0 else -math.inf
        if len(before) < least or log == -math.inf:
            found.append(0.0)
        else:
            middle = median(before)
            wide = max(MAD * median(abs(other - middle) for other in before), 0.1)
            found.append((log - middle) / wide)
        if log > -math.inf:
            before.append(log)
    return found
