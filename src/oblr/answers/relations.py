"""Chains of equalities, equations, inequalities: what they say, and of which name."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from oblr.answers.expressions import Expression, call, number, symbol, written
from oblr.answers.lexer import Lexeme, Unreadable, enclosed, spelled
from oblr.answers.parsing import parse
from oblr.answers.sampling import same_values
from oblr.answers.structure import Answer, Group, Named, Quantity, Relation, Rounded
from oblr.answers.values import within

Read = Callable[[Sequence[Lexeme]], Answer]
#: How far a rounded value may be from the one before ≈.
ROUGHLY = Fraction(1, 20)
#: And of a decimal in a chain of equalities.
ROUNDED = Fraction(1, 10**6)
#: Members of a chain that may hold variables where its last does not: what is asked for, and a formula of it.
_FORMULAS = 2
#: Letters that stand for functions more often than for factors.
_FUNCTIONS = frozenset("fghpFGHPE")
_ANY = Quantity("", symbol("∞"))


def chain(members: Sequence[Sequence[Lexeme]], marks: Sequence[str], read: Read) -> Answer:
    """``x = a = b ≈ c``: its name, and its last member, where no two members contradict each other.

    Raises:
        Unreadable: they do.
    """
    if len(members) == 2 and _arguments(members[1]) and not _arguments(members[0]):
        members = members[::-1]
    name = _name(members[0]) or _called(members[0], read)
    if name is not None and len(members) == 2:
        return _named(name, members, read)
    other = _name(members[1]) or (_called(members[1], read) if len(members) == 2 else None)
    if name is None and other is not None and list(marks) == ["="] and other not in _symbols(members[0]):
        return _named(other, members[::-1], read)
    values = [read(member) for member in (members if name is None else members[1:])]
    links = marks if name is None else marks[1:]
    for _ in range(_FORMULAS if len(members) > 2 and not _symbolic(values[-1]) else 0):
        if _symbolic(values[0]):
            values, links = values[1:], links[1:]  # A = πr² = 9π
    answer = values[0]
    for link, value in zip(links, values[1:], strict=True):
        before = answer.rounded if isinstance(answer, Rounded) else answer
        if link == "≈":
            if not _roughly(before, value):
                raise Unreadable("a value and its rounding that are far apart")
            answer = Rounded(before, value)
        elif isinstance(before, Quantity) and isinstance(value, Quantity):
            if not _equal(before.expression, value.expression):
                if name is None and len(values) == 2:
                    return _equation(before, value)
                raise Unreadable("members that are not equal")
            answer = value
        elif before != value:
            raise Unreadable("members that are not the same")
    return answer if name is None else Named(name, answer)


def _named(name: str, members: Sequence[Sequence[Lexeme]], read: Read) -> Answer:
    value = read(members[1])
    if name.startswith("("):
        return Named(name, value)
    if isinstance(value, Quantity) and name in value.expression.symbols():
        return Relation("=", symbol(name), value.expression)
    arguments = _arguments(members[0])
    if arguments and isinstance(value, Quantity):
        bound = {symbol(argument): symbol(f"argument {i}") for i, argument in enumerate(arguments)}
        renamed = replace(value, expression=value.expression.mapped(bound))
        return Named(f"{members[0][0].text}({len(arguments)})", renamed, bare=value)
    return Named(name, value)


def _equation(left: Quantity, right: Quantity) -> Answer:
    """``x - 3 = 0`` says that x is 3; others stay what they are."""
    one, other = left.expression, right.expression
    if not one.symbols() | other.symbols():
        raise Unreadable("numbers that are not equal")
    for side, rest in ((one, other), (other, one)):
        if solved := _solved(side, rest):
            return Named(solved[0], Quantity(right.text, solved[1]))
    named, value = (one, right) if one.symbols() else (other, left)
    states = not value.expression.symbols() and (value.expression != number(0) or named.op not in ("+", "*", "/", "^"))
    return Relation("=", one, other, value if states else None)


def _symbolic(answer: Answer) -> bool:
    return isinstance(answer, Quantity) and bool(answer.expression.symbols())


def _solved(one: Expression, other: Expression) -> tuple[str, Expression] | None:
    """Of ``x`` and 3, and of ``x - 3`` and 0: x and 3. What is yet to be solved has no value."""
    if one.op == "symbol" and one.symbols() and not other.symbols():
        return one.args[0], other
    if other == number(0) and one.op == "+" and one.args[0].op == "symbol" and not one.args[1].symbols():
        value = one.args[1].args[0] if one.args[1].op == "neg" else call("neg", one.args[1])
        return (one.args[0].args[0], value) if written(value) else None
    return None


def related(members: Sequence[Sequence[Lexeme]], marks: Sequence[str], read: Read) -> Answer:
    """Inequalities, and ``x ∈ …``.

    Raises:
        Unreadable: a chain of several kinds.
    """
    if list(marks) == ["∈"]:
        name = _name(members[0])
        if name is None:
            raise Unreadable("what is in a set")
        return Named(name, read(members[1]), among=True)
    if set(marks) <= {">", "≥"}:
        members, marks = members[::-1], [{">": "<", "≥": "≤"}[mark] for mark in reversed(marks)]
    values = [read(member) for member in members]
    if not set(marks) <= {"<", "≤", "≠"} or not all(isinstance(value, Quantity) for value in values):
        raise Unreadable("relations of several kinds")
    quantities = [value for value in values if isinstance(value, Quantity)]
    if len(values) == 2:
        return _pair(marks[0], *quantities)
    middle = quantities[1].expression
    if len(values) != 3 or "≠" in marks or middle.op != "symbol":
        raise Unreadable("a chain of inequalities")
    return Named(middle.args[0], Group(_bracket(marks[0], "(") + _bracket(marks[1], ")"), (values[0], values[2])), True)


def _pair(mark: str, left: Quantity, right: Quantity) -> Answer:
    """``x < 3`` as the interval that x is in."""
    one, other = left.expression, right.expression
    infinite = (Quantity("", call("neg", symbol("∞"))), _ANY)
    if mark != "≠" and (solved := _solved(one, other)):
        end = right if solved[1] is other else Quantity(right.text, solved[1])
        return Named(solved[0], Group("(" + _bracket(mark, ")"), (infinite[0], end)), True)
    if mark != "≠" and (solved := _solved(other, one)):
        end = left if solved[1] is one else Quantity(left.text, solved[1])
        return Named(solved[0], Group(_bracket(mark, "(") + ")", (end, infinite[1])), True)
    if not one.symbols() | other.symbols():
        raise Unreadable("an inequality of numbers")
    return Relation(mark, one, other)


def _bracket(mark: str, open_one: str) -> str:
    return {"<": open_one, "≤": {"(": "[", ")": "]"}[open_one]}[mark]


def _equal(one: Expression, other: Expression) -> bool:
    """Whether they are, but for the rounding of a decimal."""
    if same_values(one, other):
        return True
    rounded = any(number is not None and number.decimal for number in (written(one), written(other)))
    return rounded and within(one, other, ROUNDED)


def _roughly(exact: Answer, rounded: Answer) -> bool:
    if not isinstance(exact, Quantity) or not isinstance(rounded, Quantity):
        return False
    return within(exact.expression, rounded.expression, ROUGHLY)


def _name(lexemes: Sequence[Lexeme]) -> str | None:
    r"""The name that they are: ``x``, ``m_{\max}``, ``f(x)``, ``(x, y)``, ``AB``, ``\angle ABC``, "area"."""
    if _arguments(lexemes):
        return spelled(list(lexemes))
    if lexemes[0].text == "(" and lexemes[-1].text == ")" and len(lexemes) > 3:
        inside = lexemes[1:-1]
        if _listed(inside):
            return spelled(list(lexemes))
    if all(
        lexeme.kind in ("word", "unknown", "letter", "run") or lexeme.text in "_{}" or lexeme.kind == "number"
        for lexeme in lexemes
    ):
        if lexemes[0].kind in ("word", "unknown") and lexemes[0].text != "\\int":
            return spelled(list(lexemes))
        if all(lexeme.kind == "run" for lexeme in lexemes) and (lexemes[0].text.isupper() or len(lexemes[0].text) > 4):
            return spelled(list(lexemes))
    try:
        expression = parse(list(lexemes))
    except Unreadable:
        return None
    return expression.args[0] if expression.op == "symbol" and expression.symbols() else None


def _called(lexemes: Sequence[Lexeme], read: Read) -> str | None:
    r"""What nobody works out, as a name: ``f(1982)``, ``f'(2)``, ``P(\text{red})``, ``\gcd(a, b)``."""
    if lexemes[0].kind == "letter" and lexemes[-1].text == ")" and _applied(lexemes):
        return spelled(list(lexemes))
    if [lexemes[0].text, lexemes[-1].text] == ["|", "|"] and len(lexemes) == 3 and lexemes[1].text.isupper():
        return spelled(list(lexemes))  # how many are in a set, how long a segment is
    if lexemes[0].kind not in ("letter", "run", "word", "unknown", "name") and lexemes[0].text not in ("[", "|"):
        return None
    try:
        read(lexemes)
    except Unreadable:
        pass
    else:
        return None
    unknown = any(lexeme.kind in ("letter", "run", "word", "unknown") for lexeme in lexemes)
    return spelled(list(lexemes)) if unknown else None


def _applied(lexemes: Sequence[Lexeme]) -> bool:
    """Whether the rest is primes and one pair of brackets, around what is no factor."""
    opening = next(i for i, lexeme in enumerate(lexemes[1:], 1) if lexeme.text != "'")
    if lexemes[opening].text != "(" or not enclosed(lexemes[opening:]):
        return False
    try:
        return lexemes[0].text in _FUNCTIONS or not parse(list(lexemes[opening:])).symbols()
    except Unreadable:
        return True


def _arguments(lexemes: Sequence[Lexeme]) -> list[str]:
    """Of ``f(x, y)``: x and y."""
    if len(lexemes) < 4 or lexemes[0].kind != "letter" or lexemes[1].text != "(" or lexemes[-1].text != ")":
        return []
    inside = lexemes[2:-1]
    return [lexeme.text for lexeme in inside[::2]] if _listed(inside) else []


def _listed(lexemes: Sequence[Lexeme]) -> bool:
    """Letters with commas between them."""
    letters, commas = lexemes[::2], lexemes[1::2]
    listed = all(lexeme.kind == "letter" for lexeme in letters) and all(lexeme.text == "," for lexeme in commas)
    return listed and len(letters) > len(commas)


def _symbols(lexemes: Sequence[Lexeme]) -> frozenset[str]:
    try:
        return parse(list(lexemes)).symbols()
    except Unreadable:
        return frozenset()
