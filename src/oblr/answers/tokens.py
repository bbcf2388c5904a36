"""An answer as people and models write it, LaTeX or plain, cut into tokens that mean the same in both."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["number", "letter", "run", "word", "name", "mark", "begin", "end", "unknown"]


class Token(NamedTuple):
    r"""One token; ``spaced`` where a space stands before it.

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
_TOKEN = re.compile(
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


def tokenize(answer: str) -> list[Token]:
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
    tokens: list[Token] = []
    place, depth = 0, 0
    for match in [*_TEXT.finditer(text), None]:
        outside = text[place : match.start() if match else len(text)]
        tokens += _cut(outside, depth)
        depth = max(0, depth + sum(map(outside.count, "([")) - sum(map(outside.count, ")]")))
        if match is None:
            break
        place = match.end()
        words = match["text"] or match["bare"] or ""
        inside = [
            token._replace(kind="word") if token.kind in ("letter", "run", "name") else token
            for token in _cut(re.sub(r"(?<=\w)\.(?= |$)", "", words), 0)
        ]
        if match["name"] and len(inside) == 1 and (function := _function(inside[0].text, match["name"])):
            inside = [Token("name", function, False)]
        if inside:
            tokens += [inside[0]._replace(spaced=words[0] == " " or outside[-1:] == " "), *inside[1:]]
    if _deepest(tokens) > DEEPEST:
        raise Unreadable("too deep")
    return [_seen(tokens, i) for i in range(len(tokens))]


def _function(name: str, command: str) -> str | None:
    r"""The function that \\operatorname and \\mathrm spell out; \\mathrm{sec} may be seconds."""
    name = _ALIASES.get(name, name)
    return name if name in FUNCTIONS and (name != "sec" or command != "mathrm") else None


def _cut(text: str, depth: int) -> list[Token]:
    """Tokens of text that holds no text command; commas in brackets separate, whatever follows them."""
    tokens: list[Token] = []
    place, spaced = 0, False
    while place < len(text):
        thousands = _THOUSANDS.match(text, place) if depth <= 0 else None
        if thousands is not None:
            tokens.append(Token("number", thousands[0].replace(",", ""), spaced))
            place, spaced = thousands.end(), False
            continue
        match = _TOKEN.match(text, place)
        assert match is not None  # any one character is a mark
        place = match.end()
        if match["space"]:
            spaced = True
            continue
        token = _token(match, spaced)
        depth += (token.text in "([⦃⟨") - (token.text in ")]⦄⟩")
        tokens.append(token)
        spaced = False
    return tokens


#: Brackets, and what closes them.
OPENING = {"(": ")", "[": "]", "{": "}", "⦃": "⦄", "⌊": "⌋", "⌈": "⌉", "⟨": "⟩"}
_OPENING, _CLOSING = frozenset(OPENING), frozenset(OPENING.values())


def _token(match: re.Match[str], spaced: bool) -> Token:
    if environment := match["begin"] or match["end"]:
        return Token("begin" if match["begin"] else "end", environment, spaced)
    if match["field"]:
        return Token("name", "mathbb" + match["field"], spaced)
    if match["number"]:
        return Token("number", match["number"], spaced)
    if match["letters"]:
        return _letters(match["letters"], spaced)
    if command := match["command"]:
        command = _ALIASES.get(command, command)
        if command in _MARKS:
            return Token("mark", _MARKS[command], spaced)
        return Token("name", command, spaced) if command in _NAMES else Token("unknown", "\\" + command, spaced)
    return Token("mark", _PLAIN.get(match["mark"], match["mark"]), spaced)


def _letters(letters: str, spaced: bool) -> Token:
    if letters in _NAMES - {"frac", "binom"}:
        return Token("name", letters, spaced)
    if letters.lower() in ("pi", "inf", "infinity", "or", "and"):
        marks = {"pi": "π", "or": "or", "and": "and"}
        return Token("mark", marks.get(letters.lower(), "∞"), spaced)
    return Token("letter" if len(letters) == 1 else "run", letters, spaced)


def _seen(tokens: list[Token], i: int) -> Token:
    """Token ``i`` beside the others: ``6.7 x 10^5`` is no product with an x."""
    token = tokens[i]
    power_of_ten = [after.text for after in tokens[i + 1 : i + 3]] == ["10", "^"]
    times = token.text in ("x", "X") and power_of_ten and i and tokens[i - 1].kind == "number"
    return Token("mark", "*", token.spaced) if times else token


def enclosed(tokens: Sequence[Token]) -> bool:
    """Whether the first token is a bracket that the last one closes, of whatever kind."""
    if len(tokens) < 2 or tokens[0].text not in OPENING or tokens[-1].text not in OPENING.values():
        return False
    depth = 0
    for token in tokens[:-1]:
        depth += (token.text in OPENING) - (token.text in OPENING.values())
        if depth == 0:
            return False
    return True


def _deepest(tokens: list[Token]) -> int:
    depth = deepest = 0
    for token in tokens:
        depth += (token.text in _OPENING) - (token.text in _CLOSING) + (token.kind == "begin") - (token.kind == "end")
        deepest = max(depth, deepest)
    return deepest


def spelled(tokens: list[Token]) -> str:
    """The same for the same tokens, with a space only between those that would grow together."""
    text = ""
    for token in tokens:
        text += " " if text[-1:].isalnum() and token.text[:1].isalnum() else ""
        text += token.text
    return text
