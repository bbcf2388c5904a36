"""An answer as people and models write it, LaTeX or plain, cut into lexemes that mean the same in both."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["number", "letter", "run", "word", "name", "mark", "begin", "end", "unknown"]


class Lexeme(NamedTuple):
    r"""One lexeme; ``spaced`` where a space stands before it.

    A ``letter`` stands alone, a ``run`` is several letters side by side, a ``word`` either of them where LaTeX says
    that it is text (``\text``, ``\mathrm``); a ``name`` is a function's or a Greek letter's, a ``mark`` anything else.
    """

    kind: Kind
    text: str
    spaced: bool


class Unreadable(Exception):
    """An answer, or a part of one, that no rule reads. Only the same spelling equals it."""


#: Brackets in brackets; what models write has fewer, and readers call themselves for each.
DEEPEST = 40
FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "log",
        "ln",
        "lg",
        "exp",
        "sqrt",
        "cbrt",
        "frac",
        "binom",
    ]
)
_GREEK = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
    ]
)
_NAMES = FUNCTIONS | _GREEK
_ALIASES = {
    **{"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom"},
    **{"tg": "tan", "ctg": "cot", "arctg": "arctan", "cosec": "csc"},
}
_MARKS = {
    **dict.fromkeys(("cdot", "times", "ast", "bullet"), "*"),
    **dict.fromkeys(("le", "leq", "leqslant"), "≤"),
    **dict.fromkeys(("ge", "geq", "geqslant"), "≥"),
    **dict.fromkeys(("ne", "neq"), "≠"),
    **dict.fromkeys(("approx", "simeq"), "≈"),
    **dict.fromkeys(("circ", "degree"), "°"),
    **dict.fromkeys(("emptyset", "varnothing"), "∅"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("setminus", "smallsetminus", "backslash"), "∖"),
    **{"div": "/", "lt": "<", "gt": ">", "in": "∈", "cup": "∪", "cap": "∩", "pm": "±", "mp": "∓", "infty": "∞"},
    **{"pi": "π", "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "langle": "⟨", "rangle": "⟩"},
    **{"{": "⦃", "}": "⦄", "lbrace": "⦃", "rbrace": "⦄", "colon": ":", "%": "%", "$": "$", "\\": "\\\\", "&": "&"},
    **{"over": "over", "choose": "choose", "lbrack": "[", "rbrack": "]", "land": "and", "lor": "or", "prime": "'"},
}
_PLAIN = {"**": "^", "<=": "≤", ">=": "≥", "!=": "≠", "==": "=", "+-": "±", "+/-": "±"}
_UNICODE = str.maketrans(
    {
        **dict.fromkeys("−–—‐‑﹣－", "-"),
        **dict.fromkeys("×·⋅∙∗", "*"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\u3000\t\r\n", " "),
        **dict.fromkeys("\u200b\u2060\ufeff\u2061", None),
        **dict.fromkeys("⩽≦", "≤"),
        **dict.fromkeys("⩾≧", "≥"),
        **{"⁄": "/", "∕": "/", "÷": "/", "＋": "+", "＝": "=", "（": "(", "）": ")", "，": ",", "′": "'", "’": "'"},
        **{"√": r"\sqrt ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}"},
        **{"⅔": r"\frac{2}{3}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda "},
        **{"ℯ": "e", "ⅇ": "e", "ⅈ": "i", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "∣": "|"},
    }
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_GONE = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|boxed|fbox|underline|mathbf|mathit|boldsymbol"
    r"|bm|vec|ensuremath|mathstrut|strut)(?![A-Za-z])|\\(?:textcolor|color)\s*\{\w+\}|(?<!\\)\\[()\[\]!]"
)
_SPACE = re.compile(r"(?<!\\)\\(?:[,;: >]|quad(?![A-Za-z])|qquad(?![A-Za-z])|thinspace(?![A-Za-z]))|~|(?<!\\)\$")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|md)?|mbox|hbox|mathsf|mathtt|(?P<name>mathrm|operatorname\*?|rm))"
    r"\s*(?:\{(?P<text>[^{}]*)\}|(?P<bare>(?<![A-Za-z])[A-Za-z](?![A-Za-z])))"
)
#: Spaces between groups of three digits; a fraction after them is a mixed number's.
_GROUPS = re.compile(r"(?<![\d.,^_])\d{1,3}(?: \d{3})+(?! ?\d)(?! ?(?:/|\\[dtc]?frac))")
_LEXEME = re.compile(
    r"""(?P<space>\ +)
      | \\begin\s*\{(?P<begin>\w+)\*?\}(?:\{[clr|]*\})? | \\end\s*\{(?P<end>\w+)\*?\}
      | \\mathbb\s*\{?(?P<field>[A-Z])\}?
      | \\(?P<command>[A-Za-z]+|.)
      | (?P<number>(?:\d+\.\d+|\d+\.(?=\\overline)|\d+|\.\d+|\.(?=\\overline))(?:\\overline\{\d+\})?
          (?:[eE][+-]?\d+(?![\dA-Za-z]))?)
      | (?P<letters>[A-Za-z]+)
      | (?P<mark>\+/-|\*\*|<=|>=|!=|==|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]*\d)")


def lexed(answer: str) -> list[Lexeme]:
    """All of ``answer``.

    Raises:
        Unreadable: brackets in brackets in brackets, too many of them.
    """
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda m: f"^{{{m[0].translate(_SUPERSCRIPTS)}}}", answer).translate(_UNICODE)
    text = re.sub(r"(?<=\d)(?:\{,\}|,\\!)\s*(?=\d{3})", "", text)
    text = re.sub(" +", " ", _SPACE.sub(" ", _GONE.sub("", text)))
    text = re.sub(r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))", "°", text)
    text = _GROUPS.sub(lambda number: number[0].replace(" ", ""), text).strip()
    text = re.sub(r"(?<=[\w})\]%°!])\s*\.$", "", text)
    lexemes: list[Lexeme] = []
    place, depth = 0, 0
    for match in [*_TEXT.finditer(text), None]:
        outside = text[place : match.start() if match else len(text)]
        lexemes += _cut(outside, depth)
        depth = max(0, depth + sum(map(outside.count, "([")) - sum(map(outside.count, ")]")))
        if match is None:
            break
        place = match.end()
        words = match["text"] or match["bare"] or ""
        inside = [
            lexeme._replace(kind="word") if lexeme.kind in ("letter", "run", "name") else lexeme
            for lexeme in _cut(re.sub(r"(?<=\w)\.(?= |$)", "", words), 0)
        ]
        if match["name"] and len(inside) == 1 and (function := _function(inside[0].text, match["name"])):
            inside = [Lexeme("name", function, False)]
        if inside:
            lexemes += [inside[0]._replace(spaced=words[0] == " " or outside[-1:] == " "), *inside[1:]]
    if _deepest(lexemes) > DEEPEST:
        raise Unreadable("too deep")
    return [_seen(lexemes, i) for i in range(len(lexemes))]


def _function(name: str, command: str) -> str | None:
    r"""The function that \\operatorname and \\mathrm spell out; \\mathrm{sec} may be seconds."""
    name = _ALIASES.get(name, name)
    return name if name in FUNCTIONS and (name != "sec" or command != "mathrm") else None


def _cut(text: str, depth: int) -> list[Lexeme]:
    """Lexemes of text that holds no text command; commas in brackets separate, whatever follows them."""
    lexemes: list[Lexeme] = []
    place, spaced = 0, False
    while place < len(text):
        thousands = _THOUSANDS.match(text, place) if depth <= 0 else None
        if thousands is not None:
            lexemes.append(Lexeme("number", thousands[0].replace(",", ""), spaced))
            place, spaced = thousands.end(), False
            continue
        match = _LEXEME.match(text, place)
        assert match is not None  # any one character is a mark
        place = match.end()
        if match["space"]:
            spaced = True
            continue
        lexeme = _lexeme(match, spaced)
        depth += (lexeme.text in "([⦃⟨") - (lexeme.text in ")]⦄⟩")
        lexemes.append(lexeme)
        spaced = False
    return lexemes


#: Brackets, and what closes them.
OPENING = {"(": ")", "[": "]", "{": "}", "⦃": "⦄", "⌊": "⌋", "⌈": "⌉", "⟨": "⟩"}
_OPENING, _CLOSING = frozenset(OPENING), frozenset(OPENING.values())


def _lexeme(match: re.Match[str], spaced: bool) -> Lexeme:
    if environment := match["begin"] or match["end"]:
        return Lexeme("begin" if match["begin"] else "end", environment, spaced)
    if match["field"]:
        return Lexeme("name", "mathbb" + match["field"], spaced)
    if match["number"]:
        return Lexeme("number", match["number"], spaced)
    if match["letters"]:
        return _letters(match["letters"], spaced)
    if command := match["command"]:
        command = _ALIASES.get(command, command)
        if command in _MARKS:
            return Lexeme("mark", _MARKS[command], spaced)
        return Lexeme("name", command, spaced) if command in _NAMES else Lexeme("unknown", "\\" + command, spaced)
    return Lexeme("mark", _PLAIN.get(match["mark"], match["mark"]), spaced)


def _letters(letters: str, spaced: bool) -> Lexeme:
    if letters in _NAMES - {"frac", "binom"}:
        return Lexeme("name", letters, spaced)
    if letters.lower() in ("pi", "inf", "infinity", "or", "and"):
        marks = {"pi": "π", "or": "or", "and": "and"}
        return Lexeme("mark", marks.get(letters.lower(), "∞"), spaced)
    return Lexeme("letter" if len(letters) == 1 else "run", letters, spaced)


def _seen(lexemes: list[Lexeme], i: int) -> Lexeme:
    """Lexeme ``i`` beside the others: ``6.7 x 10^5`` is no product with an x."""
    lexeme = lexemes[i]
    power_of_ten = [after.text for after in lexemes[i + 1 : i + 3]] == ["10", "^"]
    times = lexeme.text in ("x", "X") and power_of_ten and i and lexemes[i - 1].kind == "number"
    return Lexeme("mark", "*", lexeme.spaced) if times else lexeme


def enclosed(lexemes: Sequence[Lexeme]) -> bool:
    """Whether the first lexeme is a bracket that the last one closes, of whatever kind."""
    if len(lexemes) < 2 or lexemes[0].text not in OPENING or lexemes[-1].text not in OPENING.values():
        return False
    depth = 0
    for lexeme in lexemes[:-1]:
        depth += (lexeme.text in OPENING) - (lexeme.text in OPENING.values())
        if depth == 0:
            return False
    return True


def _deepest(lexemes: list[Lexeme]) -> int:
    depth = deepest = 0
    for lexeme in lexemes:
        depth += (
            (lexeme.text in _OPENING) - (lexeme.text in _CLOSING) + (lexeme.kind == "begin") - (lexeme.kind == "end")
        )
        deepest = max(depth, deepest)
    return deepest


def spelled(lexemes: list[Lexeme]) -> str:
    """The same for the same lexemes, with a space only between those that would grow together."""
    text = ""
    for lexeme in lexemes:
        text += " " if text[-1:].isalnum() and lexeme.text[:1].isalnum() else ""
        text += lexeme.text
    return text
