"""Tokens → structure: what kind of answer this is, and what its parts are."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from oblr.answers import units
from oblr.answers.expressions import Expression, call, either_sign, symbol, written
from oblr.answers.parsing import SCALES, parse
from oblr.answers.relations import chain, related
from oblr.answers.structure import (
    Answer,
    Based,
    Choice,
    Group,
    Joined,
    Matrix,
    Named,
    Quantity,
    Several,
    Unread,
    Words,
)
from oblr.answers.tokens import OPENING, Token, Unreadable, enclosed, spelled, tokenize

_RELATIONS = frozenset(["=", "<", ">", "≤", "≥", "≠", "≈", "∈"])
_EVERYTHING = Group("()", tuple(Quantity("", value) for value in (call("neg", symbol("∞")), symbol("∞"))))
_BASED = re.compile(r"(-?[0-9A-Z]+|\(-?[0-9A-Z]+\))_\{?(\d{1,2})\}?|(-?[0-9A-Z]+) ?base ?(\d{1,2})")
_ARTICLE = re.compile(r"^(?:the|an?) ")
_CHOICE = re.compile(r"\(([A-Z])\)\.?|([A-Z])[.)]")


def read(answer: str, nouns: frozenset[str] = frozenset()) -> Answer:
    """All of ``answer``; ``nouns`` are what may stand beside a number and be no unit, in the singular."""
    try:
        tokens = tokenize(answer)
    except Unreadable:
        return Unread(" ".join(answer.split()))
    try:
        return _Reader(nouns).answers(tokens)
    except Unreadable:
        return Unread(spelled(tokens))


def split(tokens: Sequence[Token], at: Callable[[Token], bool]) -> tuple[list[list[Token]], list[str]]:
    """What stands between those tokens, outside of all brackets; and these tokens."""
    parts: list[list[Token]] = [[]]
    marks, depth = [], 0
    for token in tokens:
        if token.kind in ("mark", "begin", "end"):
            depth += (token.text in OPENING or token.kind == "begin") - (
                token.text in OPENING.values() or token.kind == "end"
            )
        if depth == 0 and token.kind in ("mark", "word") and at(token):
            parts.append([])
            marks.append(token.text)
        else:
            parts[-1].append(token)
    return parts, marks


class _Reader:
    def __init__(self, nouns: frozenset[str]):
        self.nouns = nouns

    def answers(self, tokens: Sequence[Token], braces: bool = False) -> Answer:
        """Several, or the one that there is."""
        parts, marks = split(tokens, lambda token: token.text.lower() in (",", ";", "and", "or"))
        members = [part for part in parts if part]
        if not members:
            raise Unreadable("nothing")
        if len(members) > 1 and not parts[0]:
            raise Unreadable("nothing before a separator")
        items = [item for part in members for item in self._signs(self.item(part))]
        if len(items) > 1:
            items = [item for item in items if not _is_any_number(item)] or items
        ranges = [item for item in items if isinstance(item, Named) and item.among]
        if set(marks) == {"or"} and len(ranges) == len(items) > 1 and len({item.name for item in ranges}) == 1:
            return Named(ranges[0].name, Joined(tuple(item.value for item in ranges)), among=True)
        if len(items) == 1 and not braces:
            return items[0]
        return Several(tuple(items), braces)

    def _signs(self, item: Answer) -> list[Answer]:
        """Both answers where there is a ±."""
        if isinstance(item, Named) and isinstance(item.value, Quantity):
            values = self._signs(item.value)
            return [item] if len(values) == 1 else [Named(item.name, value, item.among) for value in values]
        if not isinstance(item, Quantity):
            return [item]
        both = either_sign(item.expression)
        if len(both) == 1:
            return [item]
        return [Quantity(f"{item.text} {sign}", one, item.unit) for sign, one in zip("+-", both, strict=True)]

    def item(self, tokens: Sequence[Token]) -> Answer:
        """One answer: with relations, or without."""
        members, marks = split(tokens, lambda token: token.text in _RELATIONS)
        if not marks:
            return self.member(tokens)
        if not members[0] and marks[0] == "=":  # "= 5"
            members, marks = members[1:], marks[1:]
            if not marks:
                return self.member(members[0])
        if not all(members):
            raise Unreadable("a relation of nothing")
        if set(marks) <= {"=", "≈"}:
            return chain(members, marks, self.member)
        return related(members, marks, self.member)

    def member(self, tokens: Sequence[Token]) -> Answer:
        """What stands on one side of a relation."""
        if not tokens:
            raise Unreadable("nothing")
        text = spelled(list(tokens))
        if match := _BASED.fullmatch(text):
            digits, base = match[1] or match[3], int(match[2] or match[4])
            return Based(text, digits.strip("()"), base)
        if (special := self._special(tokens)) is not None:
            return special
        sets, marks = split(tokens, lambda token: token.text in ("∪", "∖"))
        if marks:
            return _joined([self.member(part) for part in sets], marks)
        ratio, marks = split(tokens, lambda token: token.text == ":")
        if marks:
            return Group("::", tuple(self.member(part) for part in ratio))
        if enclosed(tokens):
            return self._enclosed(tokens)
        if _wordy(tokens):
            return Words(_ARTICLE.sub("", text.casefold()))
        return self._quantity(tokens, text)

    def _special(self, tokens: Sequence[Token]) -> Answer | None:
        text = spelled(list(tokens))
        if text in ("∅", "{}", "⦃⦄"):
            return Several((), braces=True)
        if text == "mathbbR":
            return _EVERYTHING
        if tokens[0].kind in ("word", "mark") and (choice := _CHOICE.fullmatch(text)) and _is_text(tokens):
            return Choice(choice[1] or choice[2])
        if tokens[0].kind == "begin" and tokens[-1].kind == "end" and sum(t.kind == "begin" for t in tokens) == 1:
            if tokens[0].text not in ("pmatrix", "bmatrix", "matrix", "array", "Bmatrix", "smallmatrix"):
                raise Unreadable(f"what {tokens[0].text} is")
            rows, _ = split(tokens[1:-1], lambda token: token.text == "\\\\")
            return self._matrix([split(row, lambda token: token.text == "&")[0] for row in rows if row])
        if len(tokens) > 3 and tokens[-2].text == "^" and tokens[-1].text == "T" and enclosed(tokens[:-2]):
            row = self.member(tokens[:-2])
            if isinstance(row, Group):
                return Matrix(tuple((item,) for item in row.items))
        return None

    def _matrix(self, rows: Sequence[Sequence[Sequence[Token]]]) -> Matrix:
        if len(set(map(len, rows))) != 1:
            raise Unreadable("rows of several lengths")
        return Matrix(tuple(tuple(self.member(cell) for cell in row) for row in rows))

    def _enclosed(self, tokens: Sequence[Token]) -> Answer:
        first, last, inside = tokens[0].text, tokens[-1].text, tokens[1:-1]
        if not inside:
            raise Unreadable("nothing in brackets")
        if first == "⦃" or first == "{":
            if OPENING[first] != last:
                raise Unreadable("brackets that do not fit")
            parts, bars = split(inside, lambda token: token.text in ("|", ":"))
            if first == "⦃" and len(bars) == 1 and len(parts[0]) == 1 and parts[0][0].kind == "letter":
                return self.item(parts[1])
            _, commas = split(inside, lambda token: token.text in (",", ";"))
            return self.answers(inside, braces=True) if first == "⦃" or commas else self.item(inside)
        if first in "([" and inside[0].kind == "begin" and inside[-1].kind == "end":
            return self.member(inside)
        parts, commas = split(inside, lambda token: token.text in (",", ";"))
        if not commas:
            if OPENING[first] != last:
                raise Unreadable("brackets that do not fit")
            if first in "([" and not _operates(inside):
                return self.member(inside)
            return self._quantity(tokens, spelled(list(tokens)))
        brackets = {"⟨": "(", "⟩": ")"}
        if first == "[" and all(enclosed(part) and part[0].text == "[" for part in parts):
            rows = [split(part[1:-1], lambda token: token.text == ",")[0] for part in parts]
            return self._matrix(rows)
        items = tuple(self.member(part) for part in parts)
        return Group(brackets.get(first, first) + brackets.get(last, last), items)

    def _quantity(self, tokens: Sequence[Token], text: str) -> Quantity:
        tokens = list(tokens)
        percent = False
        if tokens[-1].text == "%" or tokens[-1].text.lower() in ("percent", "percents", "pct"):
            percent = True
            tokens.pop()
        elif [token.text.lower() for token in tokens[-2:]] == ["per", "cent"]:
            percent = True
            del tokens[-2:]
        unit = None
        money = [i for i, token in enumerate(tokens[:2]) if token.text in units.MARKS]
        if money and (money == [0] or tokens[0].text == "-"):
            unit = units.read_unit([tokens.pop(money[0])], frozenset())
        elif tokens and tokens[0].text in ("USD", "EUR", "GBP", "Rs"):
            unit = units.read_unit([tokens.pop(0)], frozenset())
        if not percent:
            for start in range(1, len(tokens)):
                if (found := self._unit(tokens, start)) is None:
                    continue
                if unit is not None and found.over(unit) != 1.0:
                    break
                value = parse(tokens[:start])
                product = _product(tokens, start)
                if product is not None and written(value) is None:
                    break
                return Quantity(text, value, found, product=product)
        return Quantity(text, parse(tokens), unit, percent)

    def _unit(self, tokens: list[Token], start: int) -> units.Unit | None:
        """The unit that begins at token ``start``, and ends the item."""
        first, rest = tokens[start], tokens[start:]
        if any(token.text in OPENING and token.text not in "{(" for token in rest):
            return None
        letter = first.kind == "letter" and first.spaced and first.text in units.LETTERS
        second = first.text == "sec" and len(rest) == 1  # which is a function elsewhere
        known = first.text in ("°", "Omega") or first.text in units.MARKS
        if not (letter or second or known or first.kind in ("word", "run")):
            return None
        if first.text in SCALES or tokens[start - 1].text in ("^", "_", "+", "-", "*", "/"):
            return None
        if first.kind == "run" and not first.spaced and written_number(tokens[:start]) is None:
            return None
        return units.read_unit(rest, self.nouns)


def written_number(tokens: Sequence[Token]) -> bool | None:
    """Whether they are a number that is written out; None where they are not."""
    try:
        return written(parse(list(tokens))) is not None or None
    except Unreadable:
        return None


def _product(tokens: list[Token], start: int) -> Expression | None:
    """All of it, where the letters of a unit may be variables as well."""
    first, rest = tokens[start], tokens[start:]
    spaced_run = first.kind == "run" and first.spaced
    if first.kind not in ("letter", "run") or spaced_run or spelled(rest) in units.QUOTIENTS:
        return None
    try:
        return parse(tokens)
    except Unreadable:
        return None


def _is_text(tokens: Sequence[Token]) -> bool:
    return any(token.kind == "word" for token in tokens)


def _is_any_number(item: Answer) -> bool:
    """``k ∈ ℤ``, which says of a letter in another answer what it is."""
    return isinstance(item, Named) and item.among and isinstance(item.value, Words) and "mathbb" in item.value.text


def _operates(tokens: Sequence[Token]) -> bool:
    return any(token.text in ("+", "-", "*", "/", "^") for token in tokens)


def _wordy(tokens: Sequence[Token]) -> bool:
    if len(tokens) == 1 and tokens[0].text.startswith("mathbb"):
        return True
    if not all(token.kind in ("word", "run", "letter") or token.text in ("-", ".", "'") for token in tokens):
        return False
    return any(
        token.kind in ("word", "run") and len(token.text) > (1 if token.kind == "word" else 4) for token in tokens
    ) or (len(tokens) > 1 and any(token.kind == "run" and token.spaced for token in tokens[1:]))


def _joined(parts: list[Answer], marks: list[str]) -> Answer:
    """A union; and all numbers but a few, as the intervals between those."""
    if "∖" not in marks:
        flat = [one for part in parts for one in (part.parts if isinstance(part, Joined) else (part,))]
        if not all(isinstance(part, Group | Several) for part in flat):
            raise Unreadable("a union of what are no sets")
        return Joined(tuple(flat))
    if len(parts) != 2 or parts[0] != _EVERYTHING or not isinstance(parts[1], Several):
        raise Unreadable("a difference of sets")
    return _everything_but(parts[1].items)


def _everything_but(items: Sequence[Answer]) -> Answer:
    """ℝ without some numbers."""
    values = [(written(item.expression), item) for item in items if isinstance(item, Quantity)]
    if len(values) != len(items) or not all(value for value, _ in values):
        raise Unreadable("a difference of sets")
    ordered = [item for _, item in sorted(values, key=lambda pair: pair[0].value if pair[0] else 0)]
    ends = [_EVERYTHING.items[0], *ordered, _EVERYTHING.items[1]]
    return Joined(tuple(Group("()", pair) for pair in pairwise(ends)))
