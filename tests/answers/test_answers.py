"""What counts as the same answer: docs/answers.md, spellings written by hand, and properties of any."""

import re
import time
from fractions import Fraction

import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from oblr.errors import SettingError
from oblr.problem import Completion, Problem
from oblr.rewards.answer import BoxedFormat
from oblr.rewards.math import MathReward

ENDED = Completion([1], [0.0], True)
REWARD = MathReward(BoxedFormat())


def same(gold, given, question="?", reward=REWARD):
    return reward.correct(Problem("p", question, gold), given)


def documented():
    text = (ROOT / "docs" / "answers.md").read_text()
    return re.findall(r"^\| `(.+)` \| `(.+)` \| (yes|no) \|$", text, re.MULTILINE)


def test_the_specification_has_all_its_rows():
    lines = (ROOT / "docs" / "answers.md").read_text().splitlines()
    assert len(documented()) == sum(line.startswith("| `") for line in lines) > 70


@pytest.mark.parametrize(("gold", "answer", "expected"), documented())
def test_the_specification(gold, answer, expected):
    assert same(gold, answer) == (expected == "yes")


#: An answer, then spellings that are it (=) and that are not (≠).
BY_HAND = r"""
m<3
    = m < 3 ; 3>m ; m \lt 3 ; m - 3 < 0 ; (-\infty,3) ; $m<3$
    ≠ m > 3 ; m3 ; m \leq 3 ; 3 < m ; m<-3 ; m = 3 ; n < 3 ; m
k \geqslant 2
    = k\ge2 ; 2 ≤ k ; [2,\infty) ; k >= 2
    ≠ k \le 2 ; k > 2 ; (2,\infty) ; 2
999
    = 999 ; 999.0 ; x = 999
    ≠ 999=\sqrt2 ; \sqrt{998001} ; 1=1
\sqrt2
    = \sqrt{2} ; 2^{1/2} ; \frac{2}{\sqrt 2} ; √2 ; sqrt(2)
    ≠ 999=\sqrt2 ; \sqrt3 ; -\sqrt2 ; 1.41 ; 2
1/2^98
    = 2^{-98} ; \frac{1}{2^{98}}
    ≠ -1/2^98 ; 0 ; 1/2^99 ; 1/2^98+1/2^{99}
1+10^{-30}\sqrt2
    = 1+\sqrt2 \cdot 10^{-30}
    ≠ 1 ; 1-10^{-30}\sqrt2
x^2+1
    = 1+x^2 ; x*x+1 ; x**2 + 1 ; x²+1
    ≠ x^2+1! ; x^2-1 ; y^2+1 ; x^2 ; x+1
(20,0)
    = (20, 0) ; \left(20,0\right) ; (20.0,0) ; \langle 20,0\rangle
    ≠ [20,0] ; (0,20) ; 20,0 ; (20,0] ; (20,0,0)
5.6 \times 10^{3}
    = 5600 ; 5.6e3 ; 5.6E+03 ; 56 \cdot 10^2 ; 5.6 x 10^3 ; 5,600 ; 5.6\times10^3
    ≠ 5.6 ; 5.6 \times 10^{-3} ; 56
0.0000672
    = 6.72e-5 ; 6.72 \times 10^{-5} ; 6.72·10⁻⁵ ; 6.72*10**-5
    ≠ 6.72e5 ; 6.72
67
    = 67 m ; 67 s ; 67 L ; 67\,\mathrm{kg} ; 67\text{ miles} ; 67\ \Omega
    ≠ 67x ; 67n ; 67! ; 67^2 ; 67\% + 1
10000
    = 10 000 ; 10\,000 ; 10{,}000 ; 10,000 ; 10~000 ; 10^4
    ≠ 10 00 ; 10, 000 ; 1000 ; 10.000
-8/7
    = \frac{8}{-7} ; -\frac87 ; \frac{-8}{7} ; -1\frac17 ; -(8/7)
    ≠ 8/7 ; \frac{-8}{-7} ; -7/8
18
    = \textcolor{red}{18} ; {18} ; (18) ; \mathbf{18} ; \text{18} ; +18 ; 18. ; \$18 ; 18.00 ; \boxed{18}
    ≠ 81 ; 18, 19 ; -18 ; 18i ; 18^\circ C + 1
3
    = 3=x ; x=3 ; x-3=0 ; x - 3 = 0 ; 0 = x-3 ; 1+2=3
    ≠ x+3=0 ; 2x=6 ; x=-3 ; 1+2 ; 1+2=4 ; 3=4
\{1,2\}
    = \{2,1\} ; {1,2} ; \left\{1,2\right\} ; 1,2 ; 2 and 1 ; \lbrace 1, 2\rbrace
    ≠ \{1\} ; \{1,3\} ; (1,2) ; [1,2]
\frac{x^2}{2}+C
    = x^2/2 + C ; \frac12x^2+c ; 0.5x^2+C_1 ; K + x^2/2
    ≠ x^2/2 ; x^2/2-x ; x^2+C
f(x)=-x+22
    = f(x)=22-x ; 22-x ; f(t) = 22-t
    ≠ f(x)=x-22 ; g(x)=22-x ; 22-t
1.5
    = 3/2 ; 1\frac12 ; 1 1/2 ; \frac{3}{2} ; \frac32 ; 1½
    ≠ 11/2 ; 1/2 ; 1\frac{1}{3}
\frac{\pi}{2}
    = \pi/2 ; 0.5\pi ; \frac12\pi ; π/2 ; pi/2
    ≠ \pi ; \frac{2}{\pi} ; 1.57
\emptyset
    = \varnothing ; \{\} ; ∅
    ≠ 0 ; \{0\}
7
    = 7\text{ cm} ; x=7 ; 7^\circ
    ≠ 7 hundredths ; 7 dozens ; 7 halved ; 7 negative ; 7 squared ; 7 tenths ; 7 pairs ; 7 times ; 7 mod 9 ; 7 or 8
    ≠ 7 not ; 7 thirds ; 7 inverse ; 7 doubled ; 7 short ; 7 base 9 ; 7 less ; minus 7 ; not 7
3:4
    = 3 : 4
    ≠ 4:3 ; 34
(2,\infty)
    = x>2 ; (2, \infty) ; x \in (2,\infty)
    ≠ [2,\infty) ; (-\infty,2) ; x<2
\log_2 3
    = \log_{2}3 ; \frac{\ln 3}{\ln 2} ; \frac{\log 3}{\log 2}
    ≠ \log_3 2 ; \log 3
4210_5
    = 4210_{5} ; 4210
    ≠ 4210_6 ; 421_5 ; 555
8\sqrt[3]{4}
    = 8 \cdot 4^{1/3} ; 8\sqrt[3]4
    ≠ 8\sqrt4 ; 4\sqrt[3]{8}
-1+i
    = i-1 ; i - 1
    ≠ 1-i ; -1-i ; -1
0.15
    = 15 pct ; 15\text{ pct.} ; 15\%
    ≠ 1.5 pct ; 15 pt
\frac{49!}{2}
    = \frac12 49! ; 49!/2 ; 2^{-1}49!
    ≠ 49! ; \frac12 48! ; 12 49!
(2n-1)!!
    = (2n-1)!!
    ≠ ((2n-1)!)! ; (2n-1)! ; (2n-1)!!!
15\cdot a
    = 15a
    ≠ 5!!a ; 15!!a ; 5!a
2e^{i\pi/3}
    = 2\mathrm{e}^{\mathrm{i}\pi/3} ; 2\mathrm e^{i\pi/3} ; 2{\rm e}^{i\pi/3} ; 2\operatorname{e}^{i\pi/3} ; 2ⅇ^{ⅈ\pi/3}
    ≠ 2 ; 2\mathrm{m}^{i\pi/3} ; e^{i\pi/3}
\tan(\ln x)
    = \operatorname{tan}(\mathrm{ln}\,x) ; \operatorname{tg}(\ln x) ; \tg(\ln x)
    ≠ \text{tan} ; \operatorname{cot}(\ln x)
8 \text{ MB}
    = 8 MB ; 8000 kB ; 8000 KB ; 64\text{ Mbit} ; 0.008\text{ GB} ; 64 \text{ megabits} ; 8
    ≠ 8 Mb ; 8 GB ; 8000 MB ; 8 mb ; 8 m
3 \text{ mW}
    = 3 mW ; 0.003 W ; 3 \text{ milliwatts}
    ≠ 3 MW ; 3 \text{ MW} ; 3 W
1 AU
    = 149597870.7 km ; 1
    ≠ 149597870.8 km ; 1 au^2
27 \text{ degC}
    = 27 ; 27\text{ degC}
    ≠ 548.3 \text{ K} ; 27 \text{ K}
f(1982)=660
    = 660 ; f(1982) = 660
    ≠ f(1983)=660 ; g(1982)=660 ; 661 ; 1982
|S|=5
    = 5 ; 5=|S|
    ≠ |S|=4 ; |T|=5
12
    = P(3)=3\cdot 4=12 ; P(\text{red})=12 ; f'(2)=12 ; f^{-1}(2)=12 ; [ABC]=12 ; \gcd(24,36)=12 ; \mathbb{E}[X]=12
    = 12=a+b ; a_1+a_2=12 ; x^2=12 ; |AB| = 12 ; \int_0^1 f(x)\,dx=12 ; S_{10}=12 ; \angle A=12^\circ ; a+b=5+7=12
    ≠ P(3)=3\cdot 5=12 ; P(3)=12=13 ; 2+2=12 ; a+b=5+6=12 ; a+b=13 ; 12+x=5 ; x-12x=0 ; 12x=0 ; 12 ab ; 12ab ; x^2-12=0
\text{Monday}
    = Monday ; monday ; \textbf{Monday}
    ≠ Tuesday ; Mon
"""


def spellings(sign):
    gold = ""
    for line in BY_HAND.strip().splitlines():
        if not line.startswith(" "):
            gold = line
        elif line.startswith(f"    {sign} "):
            yield from ((gold, answer.strip()) for answer in line[6:].split(" ; "))


@pytest.mark.parametrize(("gold", "answer"), [*spellings("=")])
def test_right_by_hand(gold, answer):
    assert same(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), [*spellings("≠")])
def test_wrong_by_hand(gold, answer):
    assert not same(gold, answer)


@pytest.mark.parametrize("answer", ["7 apples", "7 red apples", "7 apple", r"7\text{ apples}"])
def test_what_is_counted_is_a_unit_where_the_question_counts_it(answer):
    assert same("7", answer, "How many red apples has Tom?")
    assert not same("7", answer, "What is 3 + 4?")
    assert not same("7", "7 dozens", "How many red apples has Tom?")
    assert same("7", "7 dozens", "How many dozens of eggs are there?")


def test_graders_who_disagree_have_settings():
    physics = MathReward(BoxedFormat(), tolerance=0.01)
    assert same("9.81", "9.8", reward=physics)
    assert not same("9.81", "9.6", reward=physics)
    assert not same("-1/2^98", "1/2^98", reward=physics)
    assert same("8", r"8\%")
    assert not same("8", r"8\%", reward=MathReward(BoxedFormat(), percent="share"))
    assert same("0.08", r"8\%", reward=MathReward(BoxedFormat(), percent="share"))
    assert not same("1/3", "0.333333", reward=MathReward(BoxedFormat(), rounding=0))


@pytest.mark.parametrize("arguments", [{"rounding": -1.0}, {"tolerance": 1.0}, {"percent": "maybe"}])
def test_settings_that_are_none(arguments):
    with pytest.raises(SettingError, match=rf"^reward\.{next(iter(arguments))}"):
        MathReward(BoxedFormat(), **arguments)


NUMBERS = st.fractions(-(10**6), 10**6, max_denominator=10**4)
WRITTEN = [
    lambda v: rf"\frac{{{v.numerator}}}{{{v.denominator}}}",
    lambda v: f"{v.numerator}/{v.denominator}",
    lambda v: rf"\dfrac{{{-v.numerator}}}{{{-v.denominator}}}",
    lambda v: f"x = {v.numerator}/{v.denominator}",
]
#: Answers of which ``{}`` is a number, in other kinds of answer.
KINDS = [
    *("{}", "x = {}", "x < {}", r"\{{1,{}\}}", "(7,{})", r"[0,{}]", r"x^2+{}", r"{}\sqrt{{2}}", r"{}, a", "y={}x-1"),
    r"\begin{{pmatrix}} 1 \\ {} \end{{pmatrix}}",
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), NUMBERS, NUMBERS, st.sampled_from(WRITTEN[:3]), st.sampled_from(WRITTEN[:3]))
def test_same_means_the_same_value_both_ways(kind, value, other, spell, spell_other):
    gold, again = kind.format(f"({spell(value)})"), kind.format(f"({spell_other(value)})")
    wrong = kind.format(f"({spell_other(other)})")
    assert same(gold, again), (gold, again)
    assert same(again, gold), (again, gold)
    if kind not in ("y={}x-1", r"\{{1,{}\}}", r"{}\sqrt{{2}}"):
        assert same(gold, wrong) == same(wrong, gold) == (value == other), (gold, wrong)


ANSWERS = [gold for gold, *_ in documented()] + [gold for gold, _ in spellings("=")]
MUTATIONS = {
    "sign": lambda a: "-" + a if re.match(r"[\d.\\x(]", a) and "=" not in a and not a.startswith(r"\{") else None,
    "one more": lambda a: a + "+1" if re.search(r"[\dn]$", a) and "_" not in a and "in" not in a else None,
    "number": lambda a: (
        re.sub(r"\d", lambda d: str((int(d[0]) + 1) % 10 or 2), a, count=1) if re.search(r"\d", a) else None
    ),
    "relation": lambda a: a.replace("<", ">") if "<" in a else None,
    "exponent": lambda a: re.sub(r"(\w)\^", r"\1^3\1^", a, count=1) if re.search(r"[a-z]\^\d", a) else None,
    "one besides": lambda a: a + ", 424242" if a[-1] not in "]})" else None,
    "a word": lambda a: a + " maybe",
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_no_change_of_value_scores(mutation):
    changed = [(gold, MUTATIONS[mutation](gold)) for gold in dict.fromkeys(ANSWERS)]
    changed = [(gold, other) for gold, other in changed if other is not None and other != gold and "empty" not in gold]
    assert changed
    assert [pair for pair in changed if same(*pair)] == []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*"0123456789+-*/^_!=<>,;.|()[]{}\\%$ xyzne", r"\frac", r"\text{", " or "]), max_size=40)
)
def test_any_text_is_read_and_is_itself_alone(pieces):
    """And in less than a second of this thread's own time: others may keep the machine busy."""
    text, start = "".join(pieces), time.thread_time()
    assert same("424242", text) == (same("424242", text) and "424242" in re.sub(r"[^\d]", "", text))
    if text.strip():
        assert same(text, text)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize("again", ["-", "!", "+-", r"\sqrt ", r"\log ", "2^", "{", "(", "|", "1+", "1,", "x=", "not "])
def test_however_long_it_is_read_or_not(again):
    for times in (40, 149, 480):
        assert not same("18", f"{again * times}18")
        assert not same("18", f"x{again * times}")


def test_inequalities_of_several_names():
    assert same("x < y", "y > x")
    assert same("2x - 2y < 0", "x < y")
    assert not same("x < y", "x > y")
    assert not same("x < y", "x = y")


def test_zero_is_what_an_equation_is_solved_for():
    assert same("0", "f(3)=0")
    assert same("0", r"\cos\theta=0")
    for equation in ("x^2-4=0", "xy=0", "x+y=0", "2x=0"):
        assert not same("0", equation)


def test_neither_a_mixed_number_nor_a_product():
    assert not same("11/3", r"2\frac{5}{3}")
    assert not same("10/3", r"2\frac{5}{3}")


def test_commas_that_separate():
    assert same("27,54,108,135", "27, 54, 108, 135")
    assert same("(312,123,231)", "(312, 123, 231)")
    assert same("2500,7500", "7500, 2500")
    assert same("1,234,567", "1234567")
    assert not same("2500,750", "2500750")


def test_values_are_exact():
    assert same(str(Fraction(1, 3)), "0.333333333")
    assert not same(f"{10**40}/3", f"{10**40 + 1}/3")
    assert not same("100!", "100!+1")
