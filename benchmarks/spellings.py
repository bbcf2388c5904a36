"""Spellings of a gold answer, right and wrong, whose truth is known from how they are made.

What a gold answer is, a number, a list, a tuple and so on, is told here by regular expressions, not by the reward's own
reader. Each spelling has a class; the wrong ones change one thing.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

_NUMBER = re.compile(
    r"(?P<sign>-?)\\?\$?(?:(?P<whole>\d+)? ?\\[dt]?frac ?(?:\{(?P<over>-?\d+)\}|(?P<o>\d)) ?"
    r"(?:\{(?P<under>\d+)\}|(?P<u>\d))"
    r"|(?P<a>\d+)/(?P<b>\d+)|(?P<digits>\d+(?:(?:\{,\}|,\\! ?|,)\d{3})*)?(?P<decimals>\.\d+)?)(?P<percent> ?\\?%)?"
)
_WORDS = re.compile(r"\\text\{ ?([A-Za-z]{2,}) ?\}")
#: What changes a number beside it, and is no unit.
CHANGING = (
    *(
        "hundredths",
        "tenths",
        "dozens",
        "dozen",
        "halved",
        "negative",
        "squared",
        "cubed",
        "thirds",
        "doubled",
        "pairs",
    ),
    *(
        "times",
        "less",
        "inverse",
        "and a half",
        "to the power 2",
        "factorial",
        "modulo 9",
        "or not",
        "approximately not",
    ),
)
UNITS = (
    " cm",
    " m",
    " s",
    " L",
    r"\text{ miles}",
    r"\ \mathrm{kg}",
    r"\,\mathrm{m/s}",
    " hours",
    r"~\text{square feet}",
    " km/h",
)


WORD = "word that changes"


@dataclass(frozen=True)
class Spelling:
    kind: str
    text: str
    right: bool


def number(gold: str) -> Fraction | None:
    """Its value, where it is a number; in percent where it has a percent sign."""
    match = _NUMBER.fullmatch(gold.strip())
    if match is None or not re.search(r"\d", gold):
        return None
    if over := match["over"] or match["o"] or match["a"]:
        value = Fraction(int(over), int(match["under"] or match["u"] or match["b"])) + int(match["whole"] or 0)
    else:
        value = Fraction(re.sub(r"\D", "", match["digits"] or "") + (match["decimals"] or "") or "0")
    return -value if match["sign"] else value


def parts(text: str) -> list[str]:
    """What stands between commas outside of brackets."""
    found, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append(text[start:i].strip(" $"))
            start = i + 1
    return [*found, text[start:].strip(" $")]


def spellings(gold: str, draw: random.Random, question: str = "") -> Iterator[Spelling]:
    """All of one gold answer, at least 40. A word that the question has may be what it counts, and is not drawn."""
    gold = gold.strip().removeprefix(r"\quad").rstrip(".")
    made = [*_dressed(gold), *_by_kind(gold, draw)]
    seen, counted = set[str](), question.lower()
    for spelling in made:
        word = re.search(r"[a-z]{4,}", spelling.text.replace(r"\text", "")) if spelling.kind == WORD else None
        if word and word[0].removesuffix("s") in counted:
            continue
        if spelling.text not in seen:
            seen.add(spelling.text)
            yield spelling


def _dressed(gold: str) -> Iterator[Spelling]:
    """The same in other clothes."""
    plain = gold.replace("$", "") if r"\$" not in gold else gold
    several = len(parts(gold)) > 1 and not _bracketed(gold)
    for text in (
        *(gold, f" {gold} ", f"{plain}.", rf"\displaystyle {plain}", plain.replace(r"\frac", r"\dfrac")),
        *(plain.replace(r"\frac", r"\tfrac"), re.sub(r"([_^])(\w)", r"\1{\2}", plain), rf"\boxed{{{plain}}}"),
        *(
            rf"\textcolor{{red}}{{{plain}}}",
            rf"\color{{blue}}{{{plain}}}",
            rf"\fbox{{{plain}}}",
            f"{plain}\n",
            rf"\,{plain}\,",
        ),
        re.sub(r"\\(left|right)(?![a-z]) ?", "", plain),
    ):
        yield Spelling("other clothes", text, True)
    if r"\left" not in plain and plain.count("(") == plain.count(")"):
        stretched = plain.replace("(", r"\left(").replace(")", r"\right)")
        yield Spelling("other clothes", stretched, True)
    if r"\$" not in gold:
        yield Spelling("other clothes", f"${plain}$", True)
        yield Spelling("other clothes", rf"\({plain}\)", True)
    if not several:
        yield Spelling("other clothes", f"{{{plain}}}", True)
    for text in (
        rf"\displaystyle{{{plain}}}",
        rf"\; {plain} \;",
        rf"~{plain}~",
        rf"{plain} \quad",
        rf"\ensuremath{{{plain}}}",
    ):
        yield Spelling("other clothes", text, True)
    for text in (
        f"424242, {plain}",
        rf"{plain} \text{{ or }} 424242",
        rf"\text{{not }} {plain}",
        f"{plain} and 424242",
    ):
        yield Spelling("taken back", text, False)
    for text in (f"{plain} maybe", f"{plain} or 424242", f"{plain}, 424242", f"not {plain}", f"{plain} unless it is 7"):
        yield Spelling("taken back", text, False)
    for text in (
        f"{plain} perhaps not",
        f"never {plain}",
        f"the opposite of {plain}",
        f"{plain} wrong",
        f"424242; {plain}",
    ):
        yield Spelling("taken back", text, False)
    for text in (
        f"{plain} but negated",
        f"neither {plain}",
        f"{plain} or else 7",
        f"all but {plain}",
        f"twice {plain}",
    ):
        yield Spelling("taken back", text, False)
    yield Spelling("another answer", "424242424", False)
    yield Spelling("another answer", r"\frac{17}{424243}", False)
    if not re.search(r"(?:^|=) ?1$", plain):
        yield Spelling("another answer", "1=1", False)


def _bracketed(gold: str) -> bool:
    return bool(re.fullmatch(r"(?:\\left)? ?[(\[].*[)\]]", gold.strip(" $"))) and gold.count("(") + gold.count("[") == 1


def _by_kind(gold: str, draw: random.Random) -> Iterator[Spelling]:
    value = number(gold)
    if value is not None:
        return _of_number(gold, value, draw)
    if match := _WORDS.fullmatch(gold):
        return _of_words(match[1])
    if re.fullmatch(r"\\text\{\([A-Z]\)\}", gold):
        return _of_letter(gold[7])
    if "matrix" in gold:
        return _of_matrix(gold)
    if re.fullmatch(r"\d+_\{?\d\}?", gold):
        return _of_based(gold)
    if re.search(r"\\(?:cup|in|geq?(?:slant)?|leq?|text|mbox)(?![a-z])|[<>]|\^\{?\\circ|where", gold):
        return _of_other(gold)
    if _bracketed(gold) and len(parts(_inside(gold))) > 1:
        return _of_tuple(gold, draw)
    if len(parts(gold)) > 1 or gold.startswith(r"\{"):
        return _of_list(gold, draw)
    if gold.count("=") == 1:
        return _of_equation(gold)
    return _of_expression(gold)


def _of_number(gold: str, value: Fraction, draw: random.Random) -> Iterator[Spelling]:
    percent = "%" in gold
    marks = ("%", r"\%", " percent", r" \%") if percent else ("",)
    for text in _written(value):
        for mark in marks:
            yield Spelling("number", text + mark, True)
    bare = f"{value.numerator}" if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    if not percent:
        for text in (
            f"x = {bare}",
            f"{bare} = x",
            f"x - {bare} = 0" if value > 0 else f"x = {bare}",
            f"n={bare}",
            rf"\text{{total}} = {bare}",
        ):
            yield Spelling("equation for a number", text, True)
        for first in _written(value):
            yield Spelling("chain", f"{first} = {bare}", True)
            yield Spelling("broken chain", f"{first} = {bare} + 1", False)
        yield Spelling("broken chain", f"999999={bare}", value == 999999)
        if r"\$" not in gold:
            for unit in UNITS:
                yield Spelling("unit", bare + unit, True)
            for money in (rf"\${bare}", f"{bare} dollars", f"{bare} USD", f"€{bare}"):
                yield Spelling("unit", money, True)
        for text in (
            f"x = {bare} + 1",
            f"x - {bare} = 1",
            f"x \\neq {bare}",
            f"x < {bare}",
            f"x \\ge {bare}",
            f"2x = {2 * value + 1}",
        ):
            yield Spelling("equation for another number", text, False)
        for word in CHANGING:
            yield Spelling(WORD, f"{bare} {word}", False)
            yield Spelling(WORD, rf"{bare}\text{{ {word}}}", False)
        for letter in "nxyk":
            yield Spelling("letter", f"{bare}{letter}", False)
    for wrong in (
        -value,
        value + 1,
        value - 1,
        value * 10,
        value / 10,
        value * 2,
        1 / value if value else 1,
        value + Fraction(1, 97),
    ):
        if wrong != value and not (percent and wrong in (value * 100, value / 100)):
            for text in list(_written(Fraction(wrong)))[:4]:
                yield Spelling("another number", text + marks[0], False)
    if value.denominator == 1 and abs(value) > 9:
        digits = str(abs(value.numerator))
        swapped = digits[1] + digits[0] + digits[2:]
        if swapped != digits and swapped[0] != "0":
            yield Spelling("another number", str(value.numerator).replace(digits, swapped), False)
    for text in (
        f"({bare}, 0)",
        rf"\{{{bare}, 7777777\}}",
        f"[{bare}]+1",
        f"{bare}^2+7",
        rf"\sqrt{{{bare}}}+3",
        f"{bare}i",
    ):
        yield Spelling("in another structure", text, False)
    for rounded in _rounded(value):
        yield Spelling("rounding", rounded + marks[0], False)


def _written(value: Fraction) -> Iterator[str]:
    """A number in ways that people write it."""
    sign, size = "-" if value < 0 else "", abs(value)
    if value.denominator == 1:
        digits = f"{int(size):,}"
        for separator in (",", r"{,}", r",\!", r"\,", " ", ""):
            yield sign + digits.replace(",", separator)
        yield f"{sign}{size}.0"
        yield f"{sign}{size}.00"
        yield rf"\frac{{{2 * value}}}{{2}}"
        yield f"{sign}{3 * size}/3"
        yield f"({value})"
        yield rf"\frac{{{-value}}}{{-1}}" if value > 0 else rf"-\frac{{{size}}}{{1}}"
        if not size % 10 and size:
            tens = len(str(size)) - len(str(size).rstrip("0"))
            head = size // 10**tens
            for text in (
                rf"{head} \times 10^{{{tens}}}",
                rf"{head}\cdot 10^{tens}",
                f"{head}e{tens}",
                f"{head}E+0{tens}",
                f"{head} x 10^{tens}",
                f"{head}*10**{tens}",
                f"{head} × 10^{tens}",
            ):
                yield sign + text
        yield "−" + str(size) if sign else f"+{size}"
        return
    over, under = size.numerator, size.denominator
    for text in (
        *(
            rf"\frac{{{over}}}{{{under}}}",
            rf"\dfrac{{{over}}}{{{under}}}",
            rf"\tfrac{{{over}}}{{{under}}}",
            f"{over}/{under}",
        ),
        *(
            rf"\left(\frac{{{over}}}{{{under}}}\right)",
            rf"{{{over} \over {under}}}",
            rf"\frac{{{2 * over}}}{{{2 * under}}}",
        ),
        *(f"({over}/{under})", rf"\frac {{{over}}} {{{under}}}", f"{over} / {under}"),
    ):
        yield sign + text
    yield rf"\frac{{{-value.numerator}}}{{-{under}}}"
    yield rf"{over} \over {under}" if not sign else rf"\frac{{{value.numerator}}}{{{under}}}"
    if size > 1:
        whole, rest = divmod(over, under)
        yield rf"{sign}{whole}\frac{{{rest}}}{{{under}}}"
        yield f"{sign}{whole} {rest}/{under}"
        yield rf"{sign}{whole} \dfrac{{{rest}}}{{{under}}}"
    decimals = next((d for d in range(1, 12) if (size * 10**d).denominator == 1), None)
    if decimals is not None:
        text = str(size * 10**decimals).zfill(decimals + 1)
        text = f"{text[:-decimals]}.{text[-decimals:]}"
        for spelled in (
            text,
            text + "0",
            text.removeprefix("0"),
            f"{text}e0",
            rf"{size * 10**decimals} \times 10^{{-{decimals}}}",
            f"{size * 10**decimals}e-{decimals}",
            f"{size * 10**decimals} x 10^-{decimals}",
        ):
            yield sign + spelled
    else:
        yield sign + f"{float(size):.9f}" if size > Fraction(1, 1000) else f"{sign}{over}/{under}"


def _rounded(value: Fraction) -> Iterator[str]:
    """Too coarse by far."""
    for digits in (0, 1, 2):
        text = f"{float(value):.{digits}f}"
        if value and abs(Fraction(text) - value) > abs(value) / 1000:
            yield text


def _inside(gold: str) -> str:
    return re.sub(r"^\$? ?(?:\\left)? ?[(\[]|(?:\\right)? ?[)\]] ?\$?$", "", gold.strip())


def _of_tuple(gold: str, draw: random.Random) -> Iterator[Spelling]:
    text = gold.replace(r"\left", "").replace(r"\right", "").strip(" $")
    left, right, items = text[0], text[-1], parts(_inside(gold))
    for comma in (",", ", ", " , ", r",\,", r",\ ", r",\;"):
        inside = comma.join(items)
        for form in (
            f"{left}{inside}{right}",
            rf"\left{left} {inside} \right{right}",
            rf"\bigl{left}{inside}\bigr{right}",
        ):
            yield Spelling("tuple or interval", form, True)
    inside = ", ".join(items)
    for brackets in ("()", "[]", "(]", "[)"):
        if brackets != left + right:
            yield Spelling("other brackets", f"{brackets[0]}{inside}{brackets[1]}", False)
    yield Spelling("other brackets", rf"\{{{inside}\}}", False)
    yield Spelling("other brackets", inside, False)
    for order in (items[::-1], items[1:] + items[:1]):
        if order != items:
            yield Spelling("order", f"{left}{', '.join(order)}{right}", False)
    for i, item in enumerate(items[:6]):
        for wrong in (f"{item}+1", f"2({item})+3", "424243"):
            yield Spelling(
                "one of them",
                f"{left}{', '.join([*items[:i], wrong, *items[i + 1 :]])}{right}",
                "infty" in item and wrong != "424243",
            )
    yield Spelling("one of them", f"{left}{', '.join([*items, '7'])}{right}", False)
    yield Spelling("one of them", f"{left}{', '.join(items[:-1])}{right}", False)


def _of_list(gold: str, draw: random.Random) -> Iterator[Spelling]:
    braces = gold.startswith(r"\{")
    items = parts(gold.replace(r"\{", "").replace(r"\}", "") if braces else gold.replace("$", ""))
    if any(item.count("=") > 1 or "\\pm" in item for item in items):
        return
    names = {item.partition("=")[0].strip() for item in items if "=" in item}
    orders = [items, items[::-1], items[1:] + items[:1], sorted(items)]
    for order in orders:
        inside = ", ".join(order)
        yield Spelling("list", rf"\{{{inside}\}}", True)
        for comma in (
            (",", " , ", r",\ ", "; ", r" \text{ and } ", r"\text{ or }", " and ", " or ")
            if not braces
            else (",", " , ")
        ):
            if not re.search(r"(?<!\d)\d{1,3},\d{3}(?!\d)", comma.join(order)):  # one number, then
                yield Spelling("list", comma.join(order), True)
        if not names and "x" not in gold and not any(item.startswith("(") for item in items):
            yield Spelling("list with a name", " or ".join(f"x={item}" for item in order), True)
            yield Spelling("list with a name", rf"x \in \{{{inside}\}}", True)
    if len(set(items)) == len(items) > 1:
        for i in range(min(len(items), 4)):
            rest = [*items[:i], *items[i + 1 :]]
            for wrong in (
                rest,
                [*rest, "424242"],
                [*rest, f"{items[i]}+1" if "(" not in items[i] else "(4,2)"],
                [*items, "424242"],
                [*items, "x^7"],
            ):
                yield Spelling("list of others", ", ".join(wrong), False)
        if not names and all(number(item) is not None for item in items):
            yield Spelling("list of others", f"({', '.join(items)})", False)
    if len(names) > 1 and len(items) == 2:
        (one, a), (other, b) = (item.split("=") for item in items)
        if a.strip() != b.strip():
            yield Spelling("swapped names", f"{one}={b}, {other}={a}", False)


def _of_equation(gold: str) -> Iterator[Spelling]:
    plain = gold.replace("$", "")
    left, right = (side.strip() for side in plain.split("="))
    for text in (f"{left} = {right}", f"{left}={right}", f"{right} = {left}", f"{left} & = {right}".replace("& ", "")):
        yield Spelling("equation", text, True)
    function = re.fullmatch(r"([a-zA-Z])\((\w)\)", left)
    if function or re.fullmatch(r"[A-Za-z]", left):
        for text in (
            right,
            f"({right})",
            rf"\left({right}\right)",
            rf"\frac{{2({right})}}{{2}}" if number(right) is None else right,
        ):
            yield Spelling("value of a name", text, True)
        name = "q" if left[0] != "q" else "w"
        yield Spelling("another name", f"{name}{left[1:]} = {right}", False)
    for wrong in (f"{right}+1", f"-({right})", f"2({right})+1", f"({right})^3+5", "424242", f"{right}+w"):
        if not (right == "0" and wrong.startswith("-")):
            yield Spelling("another equation", f"{left} = {wrong}", False)
            yield Spelling("another equation", f"{wrong} = {left}", False)
    for wrong in ("0=0", "x=x", f"{left} < {right}", rf"{left} \ge {right}", rf"{left} \ne {right}", f"{left}", "1=2"):
        yield Spelling("another equation", wrong, False)


def _of_expression(gold: str) -> Iterator[Spelling]:
    plain = gold.replace("$", "").strip()
    for text in (
        *(
            f"({plain})",
            rf"\left({plain}\right)",
            rf"\frac{{2\left({plain}\right)}}{{2}}",
            rf"-(-({plain}))",
            f"0+{plain}" if plain[0] != "-" else f"0{plain}",
        ),
        *(
            rf"\frac{{{plain}}}{{1}}",
            f"1({plain})",
            rf"1 \cdot \left({plain}\right)",
            f"({plain}+7)-7",
            f"y = {plain}" if "y" not in plain else plain,
        ),
        *(
            f"3({plain})-2({plain})",
            rf"\frac{{3({plain})}}{{3}}",
            f"({plain})/1",
            rf"({plain})\cdot 5/5",
            f"({plain}) + 0",
        ),
    ):
        yield Spelling("expression", text, True)
    for text in (
        *(
            f"-({plain})",
            f"{plain}+1",
            f"{plain}-1",
            f"2({plain})",
            rf"\frac{{{plain}}}{{2}}",
            f"({plain})^2+1",
            rf"\sqrt{{{plain}}}+7",
        ),
        *(
            f"{plain}+w",
            f"w({plain})",
            f"({plain}, 1)",
            rf"\{{{plain}, 7777\}}",
            f"{plain} = 3",
            f"{plain} < 3",
            "0",
            "1",
            "w",
        ),
        *(f"{plain}!+1", f"|{plain}|+1", f"3({plain})", f"({plain})^3+2", f"{plain}+10^{{-9}}", f"1.000001({plain})"),
    ):
        yield Spelling("another expression", text, False)
    if re.search(r"\d", plain):
        for step in (1, 2):
            changed = re.sub(r"\d+", lambda d, step=step: str(int(d[0]) + step), plain, count=1)
            if (
                not re.match(r"\\(?:frac|sqrt)\d|.*\\binom", plain)
                and "floor" not in plain
                and not re.match(r"^1|^\(1", plain)
            ):
                yield Spelling("another expression", changed, False)


def _of_matrix(gold: str) -> Iterator[Spelling]:
    inside = re.sub(r"\\(?:begin|end)\{pmatrix\}", "", gold).strip()
    rows = [[cell.strip() for cell in row.split("&")] for row in inside.split(r"\\")]
    for kind in ("pmatrix", "bmatrix"):
        for gap in ("", " ", "\n"):
            for cells in ("&", " & "):
                body = (gap + r"\\" + gap).join(cells.join(row) for row in rows)
                yield Spelling("matrix", rf"\begin{{{kind}}}{gap}{body}{gap}\end{{{kind}}}", True)
    body = r" \\ ".join(" & ".join(row) for row in rows)
    columns = "c" * len(rows[0])
    yield Spelling("matrix", rf"\left[\begin{{array}}{{{columns}}} {body} \end{{array}}\right]", True)
    yield Spelling("matrix", rf"\left(\begin{{array}}{{{columns}}} {body} \end{{array}}\right)", True)
    yield Spelling("matrix", "[" + ", ".join(f"[{', '.join(row)}]" for row in rows) + "]", True)
    if len(rows[0]) == 1:
        yield Spelling("matrix", f"({', '.join(row[0] for row in rows)})", True)
        yield Spelling("matrix", rf"\langle {', '.join(row[0] for row in rows)} \rangle", True)
        yield Spelling(
            "another matrix", rf"\begin{{pmatrix}} {' & '.join(row[0] for row in rows)} \end{{pmatrix}}", False
        )
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            for wrong in (f"{cell}+1", "424242", f"{cell}+w"):
                changed = [[wrong if (a, b) == (i, j) else c for b, c in enumerate(r)] for a, r in enumerate(rows)]
                yield Spelling(
                    "another matrix",
                    _matrix(changed),
                    False,
                )
    if rows[::-1] != rows:
        yield Spelling(
            "another matrix",
            _matrix(rows[::-1]),
            False,
        )


def _matrix(rows: list[list[str]]) -> str:
    return r"\begin{pmatrix} " + r" \\ ".join(map(" & ".join, rows)) + r" \end{pmatrix}"


def _of_based(gold: str) -> Iterator[Spelling]:
    digits, base = re.findall(r"\d+", gold)
    for text in (
        f"{digits}_{base}",
        f"{digits}_{{{base}}}",
        f"{digits}_ {{{base}}}",
        rf"{digits}_{{\text{{{base}}}}}",
        digits,
        f"({digits})_{base}",
    ):
        yield Spelling("base", text, True)
    for text in (
        f"{digits}_{int(base) + 1}",
        f"{digits}_{{{int(base) - 1}}}",
        f"{digits}1_{base}",
        f"1{digits}",
        str(int(digits, int(base)) + 1),
        f"{digits[::-1]}7_{base}",
        f"{digits}_n",
    ):
        yield Spelling("another base or digits", text, False)


def _of_words(word: str) -> Iterator[Spelling]:
    for text in (
        word,
        word.lower(),
        word.upper(),
        word.capitalize(),
        rf"\text{{{word}}}",
        rf"\textbf{{{word}}}",
        rf"\mathrm{{{word}}}",
        f"{word}.",
        rf"\text{{the {word}}}",
        rf"\textit{{{word}}}",
        rf"\mbox{{{word}}}",
    ):
        yield Spelling("words", text, True)
    for text in (
        f"not {word}",
        word[:-1],
        word + "s",
        f"{word} or else",
        "nothing",
        f"un{word}",
        f"{word} 7",
        f"{word}, Bob",
        word[::-1] + "x",
        "7",
        *(f"{word[:i]}q{word[i + 1 :]}" for i in range(len(word))),
        *(f"{word} {other}" for other in ("twice", "or Bob", "maybe", "and not", "minus one")),
    ):
        yield Spelling("other words", text, False)


def _of_letter(letter: str) -> Iterator[Spelling]:
    for text in (
        letter,
        f"({letter})",
        rf"\text{{{letter}}}",
        rf"\text{{({letter})}}",
        rf"\textbf{{({letter})}}",
        rf"\mathrm{{({letter})}}",
        f"{letter}.",
        f"({letter}).",
        rf"\mathbf{{{letter}}}",
        rf"\textbf{{{letter}}}",
    ):
        yield Spelling("letter of an option", text, True)
    for other in "ABCDE":
        if other != letter:
            for text in (
                other,
                f"({other})",
                rf"\text{{({other})}}",
                f"{letter} or {other}",
                f"{letter}, {other}",
                f"{letter}{other}",
            ):
                yield Spelling("another option", text, False)
    for text in (f"{letter}. wrong", f"{letter}) 424242", f"not {letter}", f"{letter}+1", f"{letter}^2"):
        yield Spelling("another option", text, False)


def _of_other(gold: str) -> Iterator[Spelling]:
    """Unions, ranges, angles, units."""
    plain = gold.replace("$", "").strip()
    for sign, flipped in (
        (r"\geqslant", r"\leqslant"),
        (r"\cup", r"\cap"),
        (r"\cup", ","),
        ("(-", "[-"),
        (r"\in", "="),
    ):
        if sign in plain:
            changed = plain.replace(sign, flipped, 1)
            yield Spelling("another relation or bracket", changed, False)
    if r"\circ" in plain and "," not in plain:
        bare = re.sub(r"\^\{?\\circ\}?", "", plain)
        for text in (
            bare,
            f"{bare}°",
            rf"{bare}^{{\circ}}",
            rf"{bare}^\circ",
            f"{bare} degrees",
            rf"{bare}\text{{ degrees}}",
            rf"{bare}\degree",
            f"x = {bare}^\\circ",
            rf"\angle ABC = {bare}^\circ",
        ):
            yield Spelling("angle", text, True)
        for text in (f"{bare} radians", f"-{bare}", rf"1{bare}^\circ", rf"{bare}1^\circ", f"{bare} m", rf"{bare}\%"):
            yield Spelling("another angle or unit", text, False)
    if unit := re.fullmatch(r"(.+?) ?\\(?:text|mbox) ?\{ ?(\w+) ?\}(\^\d)?", plain):
        value, name, power = unit[1], unit[2], unit[3] or ""
        for text in (
            value,
            rf"{value}\text{{ {name}}}{power}",
            f"{value} {name}{power}",
            rf"{value}\,\mathrm{{{name}}}{power}",
            rf"{value}~\text{{{name}}}{power}",
        ):
            yield Spelling("unit of the gold answer", text, True)
        for text in (
            f"{value} seconds",
            rf"{value}\text{{ kg}}",
            f"-{value}",
            f"1{value} {name}",
            rf"{value}\text{{ dozens}}",
            f"{value} hundredths",
        ):
            yield Spelling("another angle or unit", text, False)
    if r"\cup" in plain:
        pieces = plain.split(r"\cup")
        yield Spelling("union", r" \cup ".join(reversed([piece.strip() for piece in pieces])), True)
        yield Spelling("union", "x \\in " + plain, True)
        yield Spelling("union", plain.replace(r"\cup", "∪"), True)
        yield Spelling("another relation or bracket", pieces[0].strip(), False)
    if plain == r"k \geqslant 2":
        for text in (r"k\ge2", r"2 \le k", r"[2,\infty)", r"k \in [2,\infty)", "k >= 2", "k ≥ 2"):
            yield Spelling("relation", text, True)
        for text in ("k > 2", r"k \le 2", "k = 2", "2", r"(2,\infty)", "n \\ge 2", "k2", r"k \ge 3"):
            yield Spelling("another relation or bracket", text, False)
