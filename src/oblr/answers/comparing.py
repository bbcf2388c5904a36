"""Which answers are the same. ``docs/answers.md`` says it in full."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from oblr.answers.expressions import Expression, Written, call, number, symbol, written
from oblr.answers.sampling import proportion, same_values
from oblr.answers.structure import (
    Answer,
    Based,
    Choice,
    Group,
    Joined,
    Matrix,
    Named,
    Quantity,
    Relation,
    Rounded,
    Several,
    Unread,
    Words,
)
from oblr.answers.units import ANGLE
from oblr.answers.values import constant, within

#: How the constant of an integration is spelled.
_CONSTANTS = frozenset(("C", "c", "K", "k", "C_1", "C_0", "c_1", "C'"))
#: What is left to work out.
_WORK = ("factorial", "factorial2", "binom")
#: Relative error of converted angles, whose units' ratio is not rational.
_CONVERTED = Fraction(1, 10**9)


@dataclass(frozen=True)
class Rules:
    """Where graders disagree.

    Args:
        rounding: relative error of a decimal in the place of a number that no decimal is.
        tolerance: relative error of any number.
        percent: "either": 8 % is 8 and 0.08; "share": it is 0.08.
    """

    rounding: Fraction = Fraction(1, 10**6)
    tolerance: Fraction = Fraction(0)
    percent: str = "either"


def same(gold: Answer, given: Answer, rules: Rules) -> bool:
    """Whether ``given`` is the answer ``gold``."""
    if gold == given:
        return True
    if isinstance(gold, Unread) or isinstance(given, Unread):
        return False
    if isinstance(gold, Rounded):
        return any(same(part, given, rules) for part in (gold.exact, gold.rounded))
    if isinstance(given, Rounded):
        return any(same(gold, part, rules) for part in (given.exact, given.rounded))
    gold, given = _unnamed(gold, given), _unnamed(given, gold)
    if isinstance(gold, Several) or isinstance(given, Several):
        return _same_sets(_several(gold), _several(given), rules)
    if isinstance(gold, Named) or isinstance(given, Named):
        return _same_named(gold, given, rules)
    for kinds, compare in _BY_KIND:
        if isinstance(gold, kinds[0]) and isinstance(given, kinds[1]):
            return compare(gold, given, rules)
    return False


def _unnamed(one: Answer, other: Answer) -> Answer:
    """``(x, y) = (2, 3)`` as a point, or as values of x and y; ``x ∈ {1, 2}`` as the set."""
    if not isinstance(one, Named):
        return one
    if one.name.startswith("(") and isinstance(one.value, Group):
        if not isinstance(other, Several):
            return one if isinstance(other, Named) else one.value
        names = one.name.strip("()").split(",")
        if len(names) == len(one.value.items):
            return Several(tuple(map(Named, names, one.value.items)), braces=False)
    return one.value if isinstance(one.value, Several) else one


def _several(answer: Answer) -> Several:
    return answer if isinstance(answer, Several) else Several((answer,), braces=False)


def _same_sets(gold: Several, given: Several, rules: Rules) -> bool:
    named, others = _names(gold), _names(given)
    if (named is None) != (others is None) and len(set(named or others or ())) > 1:
        pairs = zip(gold.items, given.items, strict=False)  # which value is whose is said by their order
        return len(gold.items) == len(given.items) and all(same(*pair, rules) for pair in pairs)
    if gold.braces or given.braces:
        return all(any(same(one, other, rules) for other in given.items) for one in gold.items) and all(
            any(same(one, other, rules) for one in gold.items) for other in given.items
        )
    return _each_once(gold.items, given.items, rules)


def _names(several: Several) -> list[str] | None:
    names = [item.name for item in several.items if isinstance(item, Named)]
    return names if names and len(names) == len(several.items) else None


def _each_once(golds: Sequence[Answer], givens: Sequence[Answer], rules: Rules) -> bool:
    rest = list(givens)
    for gold in golds if len(golds) == len(givens) else ():
        found = next((given for given in rest if same(gold, given, rules)), None)
        if found is None:
            return False
        rest.remove(found)
    return len(golds) == len(givens)


def _same_named(gold: Answer, given: Answer, rules: Rules) -> bool:
    if isinstance(gold, Named) and isinstance(given, Named):
        if gold.name == given.name:
            return gold.among == given.among and same(gold.value, given.value, rules)
        return _same_equation(gold, given)
    named, other = (gold, given) if isinstance(gold, Named) else (given, gold)
    assert isinstance(named, Named)
    if isinstance(other, Relation):
        return _same_equation(gold, given)
    value = named.bare or named.value
    return same(value, other, rules) if named is gold else same(other, value, rules)


def _same_equation(gold: Answer, given: Answer) -> bool:
    """Whether both sides' differences are proportional, and not those of a number's name."""
    one, other = _relation(gold), _relation(given)
    if one is None or other is None or one.op != other.op:
        return False
    if not _finished(other.left, one.left) or not _finished(other.right, one.right):
        return False
    way = proportion(*(call("+", side.left, call("neg", side.right)) for side in (one, other)))
    return way > 0 or (way < 0 and one.op in ("=", "≠"))


def _relation(answer: Answer) -> Relation | None:
    if isinstance(answer, Relation):
        return answer
    if isinstance(answer, Named) and isinstance(answer.value, Quantity) and not answer.among:
        value = answer.value.expression
        if value.symbols() and answer.bare is None:
            return Relation("=", symbol(answer.name), value)
    return None


def _stated(relation: Relation, other: Quantity, rules: Rules) -> bool:
    """Whether ``expression = value`` gives that value to what its other side names: ``|S| = 5``, ``V/π = 75``."""
    return relation.value is not None and same(other, relation.value, rules)


def _same_group(gold: Group, given: Group, rules: Rules) -> bool:
    fits = gold.brackets == given.brackets and len(gold.items) == len(given.items)
    return fits and all(same(*pair, rules) for pair in zip(gold.items, given.items, strict=True))


def _same_matrix(gold: Matrix, given: Matrix, rules: Rules) -> bool:
    ones, others = ([Group("[]", row) for row in matrix.rows] for matrix in (gold, given))
    return len(ones) == len(others) and all(_same_group(*pair, rules) for pair in zip(ones, others, strict=True))


def _column(group: Group) -> Matrix | None:
    """A vector in round brackets as the matrix that it is."""
    return Matrix(tuple((item,) for item in group.items)) if group.brackets == "()" else None


def _same_quantity(gold: Quantity, given: Quantity, rules: Rules) -> bool:
    if not _finished(given.expression, gold.expression):
        return False
    if gold.product is not None and given.unit is None:
        return not given.percent and same_values(gold.product, given.expression)
    if given.product is not None and gold.unit is None and gold.expression.symbols():
        return same_values(gold.expression, given.product)
    factor: Fraction | None = Fraction(1)
    if gold.unit is not None and given.unit is not None:
        factor = given.unit.over(gold.unit)
    if factor is None or (gold.percent and given.unit) or (given.percent and gold.unit):
        return False
    one, other = written(gold.expression), written(given.expression)
    if factor != 1:
        return (one is None or other is not None) and _same_converted(gold, given, factor, rules)
    if one is not None and other is not None:
        return _same_number(gold, one, given, other, rules)
    if gold.percent != given.percent:
        return False
    if one is not None:  # only what no decimal is need not be worked out
        return one.decimal and _rounds(given.expression, one.value, rules.rounding, _last_place(one.value))
    if same_values(gold.expression, given.expression):
        return True
    if other is not None and other.decimal:
        return _rounds(gold.expression, other.value, max(rules.rounding, rules.tolerance))
    return _same_integral(gold.expression, given.expression)


def _same_converted(gold: Quantity, given: Quantity, factor: Fraction, rules: Rules) -> bool:
    """Quantities in different units of one kind, the second ``factor`` times the first's."""
    theirs = call("*", given.expression, number(factor))
    if gold.unit is not None and gold.unit.dimension == ANGLE:
        return within(gold.expression, theirs, max(_CONVERTED, rules.tolerance))
    if rules.tolerance and within(gold.expression, theirs, rules.tolerance):
        return True
    return same_values(gold.expression, theirs)


def _rounds(exact: Expression, decimal: Fraction, relative: Fraction, most: Fraction | None = None) -> bool:
    """Whether the decimal stands for that number, which is none; ``most`` is the absolute error that it may have."""
    value = constant(exact)
    if value is None or isinstance(value, Fraction):
        return False
    return within(exact, number(decimal), relative, most)


def _last_place(decimal: Fraction) -> Fraction:
    """What one is in the last digit of a decimal that is not 0."""
    places = 0
    while (decimal * 10**places).denominator > 1:
        places += 1
    while decimal and (decimal * Fraction(10) ** (places - 1)).denominator == 1:
        places -= 1
    return Fraction(10) ** -places


def _finished(given: Expression, gold: Expression) -> bool:
    """Whether no factorial is left to work out, unless there are such in the problem's answer."""
    return not given.has(*_WORK) or gold.has(*_WORK)


def _same_number(gold: Quantity, one: Written, given: Quantity, other: Written, rules: Rules) -> bool:
    golds = [one.value / 100 if gold.percent else one.value]
    givens = [other.value / 100 if given.percent else other.value]
    if gold.percent != given.percent and rules.percent == "either":
        (golds if gold.percent else givens).append(one.value if gold.percent else other.value)
    return any(_equal(Written(a, one.decimal), Written(b, other.decimal), rules) for a in golds for b in givens)


def _equal(gold: Written, given: Written, rules: Rules) -> bool:
    gap = abs(gold.value - given.value)
    if gap <= abs(gold.value) * rules.tolerance:
        return True
    if given.decimal and _endless(gold.value):
        return gap <= abs(gold.value) * rules.rounding
    if not gold.decimal or not _endless(given.value):
        return False
    return gap <= min(abs(given.value) * rules.rounding, _last_place(gold.value))


def _endless(value: Fraction) -> bool:
    """Whether its decimals have no end."""
    return bool(10 ** value.denominator.bit_length() % value.denominator)


def _same_integral(gold: Expression, given: Expression) -> bool:
    """Whether they differ in the spelling of a constant that is added."""
    ours, theirs = ((side.symbols() - other.symbols()) & _CONSTANTS for side, other in ((gold, given), (given, gold)))
    if len(ours) != 1 or len(theirs) != 1:
        return False
    (one,), (other,) = ours, theirs
    if symbol(one) not in _terms(gold) or symbol(other) not in _terms(given):
        return False
    return same_values(gold, given.mapped({symbol(other): symbol(one)}))


def _terms(expression: Expression) -> list[Expression]:
    return [term for part in expression.args for term in _terms(part)] if expression.op == "+" else [expression]


def _same_choice(gold: Answer, given: Answer, rules: Rules) -> bool:
    return gold.text.upper() == given.text.strip("()").upper()  # type: ignore[union-attr]


_Compare = Callable[..., bool]
_BY_KIND: list[tuple[tuple[type | tuple[type, ...], type | tuple[type, ...]], _Compare]] = [
    ((Quantity, Quantity), _same_quantity),
    ((Words, (Words, Quantity)), lambda gold, given, _: gold.text == given.text.casefold()),
    ((Quantity, Words), lambda gold, given, _: gold.text.casefold() == given.text),
    ((Choice, (Choice, Quantity, Words)), _same_choice),
    (((Quantity, Words), Choice), lambda gold, given, rules: _same_choice(given, gold, rules)),
    ((Based, Based), lambda gold, given, _: (gold.digits, gold.base) == (given.digits, given.base)),
    ((Based, (Quantity, Words)), lambda gold, given, _: gold.digits == given.text.upper()),
    ((Group, Group), _same_group),
    ((Matrix, Matrix), _same_matrix),
    ((Matrix, Group), lambda gold, given, rules: (c := _column(given)) is not None and _same_matrix(gold, c, rules)),
    ((Group, Matrix), lambda gold, given, rules: (c := _column(gold)) is not None and _same_matrix(c, given, rules)),
    ((Joined, Joined), lambda gold, given, rules: _each_once(gold.parts, given.parts, rules)),
    ((Relation, Relation), lambda gold, given, _: _same_equation(gold, given)),
    ((Quantity, Relation), lambda gold, given, rules: _stated(given, gold, rules)),
]
