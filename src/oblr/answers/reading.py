"""Lexemes → structure: what kind of answer this is, and what its parts are."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from oblr.answers import units
from oblr.answers.expressions import Expression, call, either_sign, symbol, written
from oblr.answers.lexer import OPENING, Lexeme, Unreadable, enclosed, lexed, spelled
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

_RELATIONS = frozenset(["=", "<", ">", "≤", "≥", "≠", "≈", "∈"])
_EVERYTHING = Group("()", tuple(Quantity("", value) for value in (call("neg", symbol("∞")), symbol("∞"))))
_BASED = re.compile(r"(-?[0-9A-Z]+|\(-?[0-9A-Z]+\))_\{?(\d{1,2})\}?|(-?[0-9A-Z]+) ?base ?(\d{1,2})")
_ARTICLE = re.compile(r"^(?:the|an?) ")
_CHOICE = re.compile(r"\(([A-Z])\)\.?|([A-Z])[.)]")


def read(answer: str, nouns: frozenset[str] = frozenset()) -> Answer:
    """All of ``answer``; ``nouns`` are what may stand beside a number and be no unit, in the singular."""
    try:
        lexemes = lexed(answer)
    except Unreadable:
        return Unread(" ".join(answer.split()))
    try:
        return _Reader(nouns).answers(lexemes)
    except Unreadable:
        return Unread(spelled(lexemes))


def split(lexemes: Sequence[Lexeme], at: Callable[[Lexeme], bool]) -> tuple[list[list[Lexeme]], list[str]]:
    """Parts of ``lexemes`` between those that ``at`` picks outside of all brackets, and what these are."""
    parts: list[list[Lexeme]] = [[]]
    marks, depth = [], 0
    for lexeme in lexemes:
        if lexeme.kind in ("mark", "begin", "end"):
            depth += (lexeme.text in OPENING or lexeme.kind == "begin") - (
                lexeme.text in OPENING.values() or lexeme.kind == "end"
            )
        if depth == 0 and lexeme.kind in ("mark", "word") and at(lexeme):
            parts.append([])
            marks.append(lexeme.text)
        else:
            parts[-1].append(lexeme)
    return parts, marks


class _Reader:
    def __init__(self, nouns: frozenset[str]):
        self.nouns = nouns

    def answers(self, lexemes: Sequence[Lexeme], braces: bool = False) -> Answer:
        """Several, or the one that there is."""
        parts, marks = split(lexemes, lambda lexeme: lexeme.text.lower() in (",", ";", "and", "or"))
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

    def item(self, lexemes: Sequence[Lexeme]) -> Answer:
        """One answer: with relations, or without."""
        members, marks = split(lexemes, lambda lexeme: lexeme.text in _RELATIONS)
        if not marks:
            return self.member(lexemes)
        if not members[0] and marks[0] == "=":  # "= 5"
            members, marks = members[1:], marks[1:]
            if not marks:
                return self.member(members[0])
        if not all(members):
            raise Unreadable("a relation of nothing")
        if set(marks) <= {"=", "≈"}:
            return chain(members, marks, self.member)
        return related(members, marks, self.member)

    def member(self, lexemes: Sequence[Lexeme]) -> Answer:
        """What stands on one side of a relation."""
        if not lexemes:
            raise Unreadable("nothing")
        text = spelled(list(lexemes))
        if match := _BASED.fullmatch(text):
            digits, base = match[1] or match[3], int(match[2] or match[4])
            return Based(text, digits.strip("()"), base)
        if (special := self._special(lexemes)) is not None:
            return special
        sets, marks = split(lexemes, lambda lexeme: lexeme.text in ("∪", "∖"))
        if marks:
            return _joined([self.member(part) for part in sets], marks)
        ratio, marks = split(lexemes, lambda lexeme: lexeme.text == ":")
        if marks:
            return Group("::", tuple(self.member(part) for part in ratio))
        if enclosed(lexemes):
            return self._enclosed(lexemes)
        if _wordy(lexemes):
            return Words(_ARTICLE.sub("", text.casefold()))
        return self._quantity(lexemes, text)

    def _special(self, lexemes: Sequence[Lexeme]) -> Answer | None:
        text = spelled(list(lexemes))
        if text in ("∅", "{}", "⦃⦄"):
            return Several((), braces=True)
        if text == "mathbbR":
            return _EVERYTHING
        if lexemes[0].kind in ("word", "mark") and (choice := _CHOICE.fullmatch(text)) and _is_text(lexemes):
            return Choice(choice[1] or choice[2])
        if lexemes[0].kind == "begin" and lexemes[-1].kind == "end" and sum(t.kind == "begin" for t in lexemes) == 1:
            if lexemes[0].text not in ("pmatrix", "bmatrix", "matrix", "array", "Bmatrix", "smallmatrix"):
                raise Unreadable(f"what {lexemes[0].text} is")
            rows, _ = split(lexemes[1:-1], lambda lexeme: lexeme.text == "\\\\")
            return self._matrix([split(row, lambda lexeme: lexeme.text == "&")[0] for row in rows if row])
        if len(lexemes) > 3 and lexemes[-2].text == "^" and lexemes[-1].text == "T" and enclosed(lexemes[:-2]):
            row = self.member(lexemes[:-2])
            if isinstance(row, Group):
                return Matrix(tuple((item,) for item in row.items))
        return None

    def _matrix(self, rows: Sequence[Sequence[Sequence[Lexeme]]]) -> Matrix:
        if len(set(map(len, rows))) != 1:
            raise Unreadable("rows of several lengths")
        return Matrix(tuple(tuple(self.member(cell) for cell in row) for row in rows))

    def _enclosed(self, lexemes: Sequence[Lexeme]) -> Answer:
        first, last, inside = lexemes[0].text, lexemes[-1].text, lexemes[1:-1]
        if not inside:
            raise Unreadable("nothing in brackets")
        if first == "⦃" or first == "{":
            if OPENING[first] != last:
                raise Unreadable("brackets that do not fit")
            parts, bars = split(inside, lambda lexeme: lexeme.text in ("|", ":"))
            if first == "⦃" and len(bars) == 1 and len(parts[0]) == 1 and parts[0][0].kind == "letter":
                return self.item(parts[1])
            _, commas = split(inside, lambda lexeme: lexeme.text in (",", ";"))
            return self.answers(inside, braces=True) if first == "⦃" or commas else self.item(inside)
        if first in "([" and inside[0].kind == "begin" and inside[-1].kind == "end":
            return self.member(inside)
        parts, commas = split(inside, lambda lexeme: lexeme.text in (",", ";"))
        if not commas:
            if OPENING[first] != last:
                raise Unreadable("brackets that do not fit")
            if first in "([" and not _operates(inside):
                return self.member(inside)
            return self._quantity(lexemes, spelled(list(lexemes)))
        brackets = {"⟨": "(", "⟩": ")"}
        if first == "[" and all(enclosed(part) and part[0].text == "[" for part in parts):
            rows = [split(part[1:-1], lambda lexeme: lexeme.text == ",")[0] for part in parts]
            return self._matrix(rows)
        items = tuple(self.member(part) for part in parts)
        return Group(brackets.get(first, first) + brackets.get(last, last), items)

    def _quantity(self, lexemes: Sequence[Lexeme], text: str) -> Quantity:
        lexemes = list(lexemes)
        percent = False
        if lexemes[-1].text == "%" or lexemes[-1].text.lower() in ("percent", "percents", "pct"):
            percent = True
            lexemes.pop()
        elif [lexeme.text.lower() for lexeme in lexemes[-2:]] == ["per", "cent"]:
            percent = True
            del lexemes[-2:]
        unit = None
        money = [i for i, lexeme in enumerate(lexemes[:2]) if lexeme.text in units.MARKS]
        if money and (money == [0] or lexemes[0].text == "-"):
            unit = units.read_unit([lexemes.pop(money[0])], frozenset())
        elif lexemes and lexemes[0].text in ("USD", "EUR", "GBP", "Rs"):
            unit = units.read_unit([lexemes.pop(0)], frozenset())
        if not percent:
            for start in range(1, len(lexemes)):
                if (found := self._unit(lexemes, start)) is None:
                    continue
                if unit is not None and found.over(unit) != 1.0:
                    break
                value = parse(lexemes[:start])
                product = _product(lexemes, start)
                if product is not None and written(value) is None:
                    break
                return Quantity(text, value, found, product=product)
        return Quantity(text, parse(lexemes), unit, percent)

    def _unit(self, lexemes: list[Lexeme], start: int) -> units.Unit | None:
        """The unit that begins at lexeme ``start``, and ends the item."""
        first, rest = lexemes[start], lexemes[start:]
        if any(lexeme.text in OPENING and lexeme.text not in "{(" for lexeme in rest):
            return None
        letter = first.kind == "letter" and first.spaced and first.text in units.LETTERS
        second = first.text == "sec" and len(rest) == 1  # which is a function elsewhere
        known = first.text in ("°", "Omega") or first.text in units.MARKS
        if not (letter or second or known or first.kind in ("word", "run")):
            return None
        if first.text in SCALES or lexemes[start - 1].text in ("^", "_", "+", "-", "*", "/"):
            return None
        if first.kind == "run" and not first.spaced and written_number(lexemes[:start]) is None:
            return None
        return units.read_unit(rest, self.nouns)


def written_number(lexemes: Sequence[Lexeme]) -> bool | None:
    """Whether they are a number that is written out; None where they are not."""
    try:
        return written(parse(list(lexemes))) is not None or None
    except Unreadable:
        return None


def _product(lexemes: list[Lexeme], start: int) -> Expression | None:
    """All of it, where the letters of a unit may be variables as well."""
    first, rest = lexemes[start], lexemes[start:]
    spaced_run = first.kind == "run" and first.spaced
    if first.kind not in ("letter", "run") or spaced_run or spelled(rest) in units.QUOTIENTS:
        return None
    try:
        return parse(lexemes)
    except Unreadable:
        return None


def _is_text(lexemes: Sequence[Lexeme]) -> bool:
    return any(lexeme.kind == "word" for lexeme in lexemes)


def _is_any_number(item: Answer) -> bool:
    """``k ∈ ℤ``, which says of a letter in another answer what it is."""
    return isinstance(item, Named) and item.among and isinstance(item.value, Words) and "mathbb" in item.value.text


def _operates(lexemes: Sequence[Lexeme]) -> bool:
    return any(lexeme.text in ("+", "-", "*", "/", "^") for lexeme in lexemes)


def _wordy(lexemes: Sequence[Lexeme]) -> bool:
    if len(lexemes) == 1 and lexemes[0].text.startswith("mathbb"):
        return True
    if not all(lexeme.kind in ("word", "run", "letter") or lexeme.text in ("-", ".", "'") for lexeme in lexemes):
        return False
    return any(
        lexeme.kind in ("word", "run") and len(lexeme.text) > (1 if lexeme.kind == "word" else 4) for lexeme in lexemes
    ) or (len(lexemes) > 1 and any(lexeme.kind == "run" and lexeme.spaced for lexeme in lexemes[1:]))


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
