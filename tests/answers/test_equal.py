"""Equal answers are equal and others are not, by oracles that share no code with the reward: mpmath at 700 digits."""

import math
import os
from fractions import Fraction
from itertools import pairwise

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oblr.problem import Problem
from oblr.rewards.answer import BoxedFormat
from oblr.rewards.math import MathReward

REWARD = MathReward(BoxedFormat())
EXAMPLES = int(os.environ.get("OBLR_EQUAL_EXAMPLES", "60"))
DIGITS = 700
#: Letters that are variables wherever they stand, but constants of integration and letters that are units, too.
LETTERS = [*"abdfjnopquvwxyzDGIMPQRSXYZ", r"\theta", r"\alpha", r"\lambda", "x_1", "y_{2}", "a'"]


def same(gold, given, question="?"):
    return REWARD.correct(Problem("p", question, gold), given)


# --- numbers: a tree is written in LaTeX, and worked out by mpmath ----------------------------------------------------

WHOLE = st.integers(1, 40).map(lambda n: (str(n), lambda: mpmath.mpf(n)))
LEAVES = st.one_of(
    WHOLE,
    WHOLE,
    st.sampled_from(
        [(r"\pi", lambda: +mpmath.pi), ("e", lambda: +mpmath.e), ("10^{40}", lambda: mpmath.mpf(10) ** 40)]
    ),
    st.tuples(st.integers(1, 30), st.integers(2, 30)).map(
        lambda f: (rf"\frac{{{f[0]}}}{{{f[1]}}}", lambda: mpmath.mpf(f[0]) / f[1])
    ),
    st.integers(20, 400).map(lambda k: (f"2^{{-{k}}}", lambda: mpmath.mpf(2) ** -k)),
)
UNARY = [
    (r"\sqrt{{{}}}", mpmath.sqrt),
    (r"\sqrt[3]{{{}}}", lambda v: mpmath.sign(v.real) * mpmath.cbrt(abs(v)) if v.imag == 0 else mpmath.cbrt(v)),
    (r"\left|{}\right|", abs),
    (r"\left(-{}\right)", lambda v: -v),
    (r"\left({}\right)^2", lambda v: v * v),
    (r"\cos\left({}\right)", mpmath.cos),
    (r"\ln\left({}\right)", mpmath.log),
]
BINARY = [
    (r"\left({}+{}\right)", lambda a, b: a + b),
    (r"\left({}-{}\right)", lambda a, b: a - b),
    (r"{} \cdot {}", lambda a, b: a * b),
    (r"\frac{{{}}}{{{}}}", lambda a, b: a / b),
]


#: Without numbers that take more bits than the limit once they stand in a cosine several times.
MODEST = st.one_of(WHOLE, st.integers(5, 20).map(lambda k: (f"2^{{-{k}}}", lambda: mpmath.mpf(2) ** -k)))


def grown(inner):
    one = st.tuples(st.sampled_from(UNARY), inner).map(
        lambda t: (t[0][0].format(t[1][0]), lambda: t[0][1](mpmath.mpmathify(t[1][1]())))
    )
    two = st.tuples(st.sampled_from(BINARY), inner, inner).map(
        lambda t: (t[0][0].format(t[1][0], t[2][0]), lambda: t[0][1](t[1][1](), t[2][1]()))
    )
    return one | two | two


NUMBERS = st.recursive(LEAVES, grown, max_leaves=6)


def apart(one, other):
    """Whether mpmath finds them to differ; None where it cannot work them out."""
    with mpmath.workdps(DIGITS):
        try:
            a, b = one(), other()
            if not mpmath.isfinite(a) or not mpmath.isfinite(b):
                return None
            size = max(abs(a), abs(b))
            if size > mpmath.mpf(10) ** 300:
                return None
            return bool(abs(a - b) > mpmath.mpf(10) ** -(DIGITS - 300))
        except (ZeroDivisionError, ValueError, OverflowError, TypeError):
            return None


def worked(text):
    """As what asks for no written number: those may be left to work out."""
    return rf"z+({text})"


@settings(max_examples=3 * EXAMPLES, deadline=None)
@given(NUMBERS, NUMBERS)
def test_numbers_are_equal_where_700_digits_are(one, other):
    if (different := apart(one[1], other[1])) is not None and len(one[0] + other[0]) < 500:
        assert same(worked(one[0]), worked(other[0])) <= (not different)


#: Ways to write the same number, and a near one; each given the LaTeX of a number, and of another.
SAME = [
    *((r"{a}+{b}", r"{b}+{a}"), (r"({a})({b})", r"({b})({a})"), (r"({a}+{b})^2", r"({a})^2+2({a})({b})+({b})^2")),
    *((r"\frac{{{a}}}{{3}}", r"{a} \cdot \frac13"), (r"{a}-{b}", r"-({b}-{a})"), (r"\sqrt[3]{{({a})^3}}", r"{a}")),
    *((r"\sqrt{{({a})^2}}", r"\left|{a}\right|"), (r"\sin^2({a})+\cos^2({a})", "1"), (r"|({a})({b})|", r"|{a}||{b}|")),
    *(
        (r"3\sqrt{{({a})^2+1}}", r"\sqrt{{9({a})^2+9}}"),
        (r"\frac{{1}}{{\sqrt{{|{a}|+2}}-1}}", r"\frac{{\sqrt{{|{a}|+2}}+1}}{{|{a}|+1}}"),
    ),
]


@settings(max_examples=3 * EXAMPLES, deadline=None)
@given(
    st.sampled_from(SAME),
    st.tuples(WHOLE, WHOLE) | st.tuples(st.recursive(MODEST, grown, max_leaves=2), WHOLE),
    st.integers(1, 400),
    st.sampled_from(["10^{{-{}}}", r"\frac{{\pi}}{{10^{{{}}}}}", r"\sqrt2 \cdot 10^{{-{}}}", r"e^{{-{}}}"]),
)
def test_identities_hold_and_what_is_as_near_as_one_likes_does_not(identity, numbers, places, little):
    one, other = (side.format(a=numbers[0][0], b=numbers[1][0]) for side in identity)
    with mpmath.workdps(DIGITS):
        value = mpmath.mpmathify(numbers[0][1]())
        if not mpmath.isfinite(value) or value.imag or not 1e-30 < abs(value) < 1e30:
            return
    assert same(worked(one), worked(other)), (one, other)
    assert not same(worked(one), worked(f"{other}+{little.format(places)}"))
    assert not same(worked(f"{one}-{little.format(places)}"), worked(other))


HUGE = [
    (r"\sqrt{{10^{{{0}}}+1}}", r"10^{{{1}}}"),
    (r"\frac{{\pi}}{{2^{{{0}}}}}", "0"),
    (r"\frac{{\pi}}{{2^{{{0}}}}}", r"\frac{{e}}{{2^{{{0}}}}}"),
    (r"10^{{{0}}}\pi", r"10^{{{0}}}\pi+1"),
    (r"\sqrt{{2^{{{0}}}+3}}-2^{{{1}}}", "0"),
    (r"\cos(10^{{-{0}}})", "1"),
    (r"\frac{{\sin(10^{{-{0}}})}}{{10^{{-{0}}}}}", "1"),
    (r"\lfloor 1-10^{{-{0}}}\pi \rfloor", "1"),
    (r"e^{{-{0}}}", "0"),
    (r"\ln(1+10^{{-{0}}})", "10^{{-{0}}}"),
    (r"(1+10^{{-{0}}}\sqrt2)^2", "1"),
]


@pytest.mark.parametrize("places", [2, 40, 200, 2000, 6000])
@pytest.mark.parametrize(("one", "other"), HUGE)
def test_no_size_and_no_cancellation_makes_numbers_equal(one, other, places):
    one, other = (side.format(places, places // 2) for side in (one, other))
    for gold, answer in ((one, other), (other, one)):
        assert not same(gold, answer)
        assert not same(f"x={gold}", f"x={answer}")
        assert not same(worked(gold), worked(answer))


def test_almost_whole_numbers_are_not_whole():
    assert not same(r"e^{\pi\sqrt{163}}", "640320^3+744")
    assert not same(r"\lfloor e^{\pi\sqrt{163}}\rfloor + x", "640320^3+744 + x")
    assert same(r"\lfloor e^{\pi\sqrt{163}}\rfloor + x", "640320^3+743 + x")
    assert same(r"\lfloor\log_2 8\rfloor + x", "x+3")
    assert same(r"\lceil\sqrt2\sqrt8\rceil + x", "x+4")


SPECIAL = [
    *(
        r"\infty",
        r"-\infty",
        r"+\infty",
        r"\infty+1",
        r"2\infty",
        r"\infty-\infty",
        r"\frac{1}{\infty}",
        r"\frac{1}{0}",
        "inf",
        "nan",
    ),
    *(
        "NaN",
        "zoo",
        r"\tan\frac{\pi}{2}",
        r"\ln 0",
        "0^0",
        r"\frac{0}{0}",
        "9^{9^{9^9}}",
        "9^{-9^{9^9}}",
        "10^{-99999}",
        "1e-999",
    ),
    *(
        "e^{e^{e^e}}",
        "e^{-e^{e^e}}",
        "(10^9)!",
        r"\infty!",
        r"0\cdot\infty",
        "1e999",
        "10^{10^{10}}",
        r"e^{-10^{30}}",
        "i",
        "-0.0000001",
    ),
]


@pytest.mark.parametrize(
    "gold",
    [
        "0.5",
        "1.0",
        "0",
        "0.0",
        "1",
        "-3.25",
        "1e-7",
        r"\sqrt2",
        r"\pi",
        "1000000.0",
        "6.02 \\times 10^{23}",
        "x",
        "x=0.25",
    ],
)
def test_no_special_value_is_a_number(gold):
    assert [answer for answer in SPECIAL if same(gold, answer)] == []
    assert [answer for answer in SPECIAL if same(answer, gold)] == []


def test_infinity_is_itself_alone():
    assert same(r"\infty", r"+\infty")
    assert not same(r"\infty", r"-\infty")
    assert not same(r"\infty", r"\infty+1")
    assert not same(r"\infty", "10^{999}")
    assert same(r"(-\infty, 3)", "x < 3")


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("3.14159265358979", r"\pi", True),
        ("3.14159265358971", r"\pi", False),  # 14 digits are written: the last one is wrong
        ("3.1415927", r"\pi", True),
        ("0.333333333", r"\frac13", True),
        ("0.333333338", r"\frac13", False),
        ("3.14", r"\pi", False),
        (r"6.2831853 \times 10^{12}", r"2\pi \cdot 10^{12}", True),
        (r"\pi", "3.141593", True),
        ("1000", r"1000+10^{-9}\pi", False),
    ],
)
def test_a_decimal_stands_for_a_number_to_its_own_last_place(gold, answer, expected):
    assert same(gold, answer) == expected


# --- functions --------------------------------------------------------------------------------------------------------

#: ``@`` and ``#`` stand for operands, ``⟨0⟩`` and ``⟨1⟩`` for variables.
SYMBOLIC_LEAVES = st.one_of(
    *2 * [st.just(("⟨0⟩", lambda x, y: x)), st.just(("⟨1⟩", lambda x, y: y))],
    st.integers(1, 9).map(lambda n: (str(n), lambda x, y: Fraction(n))),
)
PIECES = [
    (r"\left|@\right|", abs),
    (r"\lfloor @\rfloor", math.floor),
    (r"\lceil @\rceil", math.ceil),
    (r"\sqrt{(@)^2}", abs),
    (r"\left(@\right)^2", lambda v: v * v),
    (r"\left(-@\right)", lambda v: -v),
]
SIDES = [
    (r"\left(@+#\right)", lambda a, b: a + b),
    (r"\left(@-#\right)", lambda a, b: a - b),
    (r"(@)(#)", lambda a, b: a * b),
]


def symbolic(inner):
    one = st.tuples(st.sampled_from(PIECES), inner).map(
        lambda t: (t[0][0].replace("@", t[1][0]), lambda x, y: t[0][1](t[1][1](x, y)))
    )
    two = st.tuples(st.sampled_from(SIDES), inner, inner).map(
        lambda t: (
            t[0][0].replace("@", t[1][0]).replace("#", t[2][0]),
            lambda x, y: t[0][1](t[1][1](x, y), t[2][1](x, y)),
        )
    )
    return one | two | two


FUNCTIONS = st.recursive(SYMBOLIC_LEAVES, symbolic, max_leaves=6)
GRID = [Fraction(n, 60) for n in (-7201, -601, -121, -60, -37, -13, 0, 7, 29, 60, 101, 150, 420, 3601)]


def agree(one, other):
    """Whether two functions are the same on a grid of both signs, of whole and other points."""
    return all(one(x, y) == other(x, y) for x in GRID for y in GRID)


def named(text, letters):
    return text.replace("⟨0⟩", f"{{{letters[0]}}}").replace("⟨1⟩", f"{{{letters[1]}}}")


#: Ways to write the same function, and rarely the same function, of two others.
ALIKE = [
    *(
        ("@+#", "#+@"),
        ("(@)(#)", "(#)(@)"),
        (r"|(@)(#)|", r"|@||#|"),
        (r"\sqrt{(@)^2}", r"|@|"),
        (r"|@-(#)|", r"|#-(@)|"),
    ),
    *((r"-\lfloor @\rfloor", r"\lceil -(@)\rceil"), (r"\lfloor @\rfloor+3", r"\lfloor @+3\rfloor")),
]
UNLIKE = [
    *(("@", r"|@|"), ("@", r"\lfloor @\rfloor"), (r"\lceil @\rceil", r"\lfloor @\rfloor+1"), ("|@+#|", "|@|+|#|")),
    *((r"\sqrt{(@)^2}", "@"), (r"|@|", "-(@)"), (r"\lfloor @\rfloor", r"\lceil @\rceil"), ("|@-1000|", "1000-(@)")),
    *(("@", r"\lfloor @+\frac12\rfloor"), ("@+#", "@-(#)"), (r"\lfloor 2(@)\rfloor", r"2\lfloor @\rfloor")),
]
PAIRS = st.lists(st.sampled_from(LETTERS), min_size=4, max_size=4, unique=True)


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(st.sampled_from([*ALIKE, *UNLIKE]), FUNCTIONS, FUNCTIONS, PAIRS)
def test_functions_are_the_same_where_they_agree_everywhere_and_whatever_their_letters(form, one, other, letters):
    texts = [side.replace("@", one[0]).replace("#", other[0]) for side in form]
    if max(map(len, texts)) > 400:
        return
    verdict = same(*(named(text, letters[:2]) for text in texts))
    assert same(*(named(text, letters[2:]) for text in texts)) == verdict
    if form in ALIKE:
        assert verdict
    elif verdict:  # such as |x²| = x²
        assert agree(*(worked_out(side, one[1], other[1]) for side in form))


def worked_out(side, one, other):
    """One of the sides above as a function of x and y."""
    floor, ceil = math.floor, math.ceil
    made = {
        "@": lambda a, b: a,
        "|@|": lambda a, b: abs(a),
        r"\lfloor @\rfloor": lambda a, b: floor(a),
        r"\lceil @\rceil": lambda a, b: ceil(a),
        r"\lfloor @\rfloor+1": lambda a, b: floor(a) + 1,
        "|@+#|": lambda a, b: abs(a + b),
        "|@|+|#|": lambda a, b: abs(a) + abs(b),
        r"\sqrt{(@)^2}": lambda a, b: abs(a),
        "-(@)": lambda a, b: -a,
        "|@-1000|": lambda a, b: abs(a - 1000),
        "1000-(@)": lambda a, b: 1000 - a,
        r"\lfloor @+\frac12\rfloor": lambda a, b: floor(a + Fraction(1, 2)),
        "@+#": lambda a, b: a + b,
        "@-(#)": lambda a, b: a - b,
        r"\lfloor 2(@)\rfloor": lambda a, b: floor(2 * a),
        r"2\lfloor @\rfloor": lambda a, b: 2 * floor(a),
    }[side]
    return lambda x, y: made(one(x, y), other(x, y))


@pytest.mark.parametrize(
    "letter", [*LETTERS, *"cghiklmstBCEFHJKLNOTUVWA", r"\beta", r"\mu", r"\phi", r"\omega", r"\Omega"]
)
def test_no_letter_is_positive_or_whole(letter):
    if letter in ("i", "e"):
        return
    for form in UNLIKE:
        gold, answer = (side.replace("@", f"{{{letter}}}").replace("#", "{r}") for side in form)
        assert not same(gold, answer), (gold, answer)
        assert not same(answer, gold), (answer, gold)


def test_signs_of_all_products():
    for names in ("ab", "abc", "abcd"):
        bars = "".join(f"|{name}|" for name in names)
        assert same(f"|{names}|", bars)
        assert not same(names, bars)
        for left, right in pairwise(names):
            assert not same(names, names.replace(left + right, f"|{left}{right}|"))


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"(-2)^{-k}", r"(-\frac12)^k"),
        (r"\frac{(-1)^n}{2^n}", r"\left(-\frac{1}{2}\right)^n"),
        (r"(-1)^{n+1}", r"(-1)^{n-1}"),
        (r"(-1)^{n+1}", r"-(-1)^{n}"),
        (r"2(-3)^{p}", r"-6(-3)^{p-1}"),
        (r"x\sqrt{x}", r"\sqrt{x^3}"),
        (r"\sqrt[3]{x}", r"x^{1/3}"),
        (r"(k+1)!", r"(k+1)k!"),
        (r"\ln(x-1000)+\ln x", r"\ln(x(x-1000))"),
    ],
)
def test_functions_of_part_of_the_numbers(gold, answer):
    assert same(gold, answer)
    assert same(answer, gold)
    assert not same(gold, f"-({answer})")


def test_powers_of_negative_numbers_are_told_apart():
    assert not same("(-1)^n", "1")
    assert not same("(-1)^n", "(-1)^{n+1}")
    assert not same("(-1)^{n(n+1)/2}", "(-1)^n")
    assert not same(r"(-2)^{-k}", r"2^{-k}")
    assert not same(r"(-2)^{-k}", r"-2^{-k}")
    assert not same("x", "x(-1)^{2x}")


@pytest.mark.parametrize(
    ("product", "value"),
    [
        (r"(2)(\frac{1}{2})", "1"),
        (r"2(\frac{1}{2})", "1"),
        (r"(2)\frac{1}{2}", "1"),
        (r"2\left[\frac{1}{2}\right]", "1"),
        (r"2(\frac{3}{2})", "3"),
        (r"2\frac{1}{2}", "2.5"),
    ],
)
def test_brackets_make_a_product_of_what_would_be_a_mixed_number(product, value):
    assert same(f"z+{value}", f"z+{product}")
    assert value == "2.5" or not same("z+2.5", f"z+{product}")
