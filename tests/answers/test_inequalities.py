"""Chains of every <, ≤, > and ≥, and intervals, are the same where they hold for the same numbers."""

import operator
import re
from fractions import Fraction
from itertools import product

import pytest
from test_answers import same

HOLDS = {"<": operator.lt, r"\leq": operator.le, ">": operator.gt, r"\geq": operator.ge}
TURNED = {"<": ">", r"\leq": r"\geq", ">": "<", r"\geq": r"\leq"}
POINTS = [Fraction(n, 2) for n in range(-10, 12)]


def holds(text, x):
    """For a number, told from the text without the reader."""
    if interval := re.fullmatch(r"([(\[])(\S+),(\S+)([)\]])", text):
        opening, low, high, closing = interval.groups()
        above = low == r"-\infty" or HOLDS[">" if opening == "(" else r"\geq"](x, int(low))
        return above and (high == r"\infty" or HOLDS["<" if closing == ")" else r"\leq"](x, int(high)))
    members = [x if member == "x" else int(member) for member in text.split()[::2]]
    marks = text.split()[1::2]
    return all(HOLDS[mark](a, b) for a, mark, b in zip(members, marks, members[1:], strict=False))


def turned(text):
    return " ".join(TURNED.get(word, word) for word in reversed(text.split()))


CHAINS = [f"{low} {a} x {b} {high}" for low, high in ((-2, 3), (-3, 4)) for a, b in product(["<", r"\leq"], repeat=2)]
RAYS = [f"x {mark} {end}" for mark in HOLDS for end in (-2, 3)]
INTERVALS = [f"{a}-2,3{b}" for a, b in product("([", ")]")]
INTERVALS += [rf"(-\infty,{end}{b}" for b in ")]" for end in (-2, 3)] + [rf"{a}3,\infty)" for a in "(["]
TEXTS = [*CHAINS, *map(turned, CHAINS), *RAYS, *map(turned, RAYS), *INTERVALS]


@pytest.mark.parametrize("gold", TEXTS)
def test_what_holds_for_the_same_numbers_is_the_same(gold):
    for text in TEXTS:
        expected = all(holds(gold, x) == holds(text, x) for x in POINTS)
        assert same(gold, text) == expected, text


@pytest.mark.parametrize("up", ["<", r"\leq"])
@pytest.mark.parametrize("down", [">", r"\geq"])
def test_a_chain_of_both_directions_says_none_of_them(up, down):
    for chain in (f"-2 {up} x {down} 3", f"-2 {down} x {up} 3"):
        assert not [text for text in TEXTS if same(text, chain)]
