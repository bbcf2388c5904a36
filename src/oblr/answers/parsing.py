"""Lexemes → expressions: the arithmetic of school and university, and nothing that is not understood whole.

(The parsers of sympy and math-verify read what they know of a text and drop the rest: ``x^2+1!`` is x² + 1 to them.)
"""

from fractions import Fraction

from oblr.answers.expressions import LONGEST_POWER, Expression, call, number, symbol, written
from oblr.answers.lexer import FUNCTIONS, Lexeme, Unreadable

#: Lexemes of an expression: signs and factorials nest without brackets.
_LONGEST = 150
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CLOSED_BY = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉", "|": "|"}
_BRACKET_FUNCTIONS = {"⌊": "floor", "⌈": "ceil", "|": "abs"}
_INSIDE_ARGUMENTS = FUNCTIONS - {"frac", "sqrt", "cbrt", "binom"}


def parse(lexemes: list[Lexeme]) -> Expression:
    """All of ``lexemes`` as one expression.

    Raises:
        Unreadable: it is none, or holds something that is not understood.
    """
    if len(lexemes) > _LONGEST:
        raise Unreadable("too long")
    parser = _Parser(lexemes)
    expression = parser.sum()
    if parser.lexemes:
        raise Unreadable(f"{parser.lexemes[-1].text} is left")
    return expression


class _Parser:
    """Recursive descent; ``lexemes`` are what is left, the next one last."""

    def __init__(self, lexemes: list[Lexeme]):
        self.lexemes = lexemes[::-1]
        self.bars = False  # inside an absolute value
        self.closed = False  # a bracket was closed last

    def next(self) -> str:
        return self.lexemes[-1].text if self.lexemes else ""

    def take(self, *texts: str) -> str:
        if self.lexemes and self.next() in texts and self.lexemes[-1].kind in ("mark", "name"):
            return self.lexemes.pop().text
        return ""

    def sum(self) -> Expression:
        left = self.product()
        while sign := self.take("+", "-", "±", "∓"):
            right = self.product(signed=False)
            left = call("+", left, _with(sign, right))
        if infix := self.take("over", "choose"):
            left = call("/" if infix == "over" else "binom", left, self.sum())
        return left

    def product(self, signed: bool = True) -> Expression:
        if sign := self.take("-", "±", "∓", "+") if signed else "":
            return _with(sign, self.product(signed=False))
        left = self.power()
        while True:
            if sign := self.take("*", "/"):
                left = call(sign, left, call("neg", self.power()) if self.take("-") else self.power())
            elif self.begins():
                factorial = left.op != "number" and [lexeme.text for lexeme in self.lexemes[-2:-1]] == ["!"]
                if self.lexemes[-1].kind == "number" and not self.closed and not factorial:
                    raise Unreadable("a number after another, with nothing between them")
                factor = self.closed or self.next() in ("(", "[")
                left = call("*", left, self.power()) if factor else _side_by_side(left, self.power())
            else:
                return left

    def begins(self) -> bool:
        if not self.lexemes:
            return False
        kind, text, _ = self.lexemes[-1]
        if kind == "mark":
            return text in ("(", "[", "{", "⌊", "⌈", "π", "∞") or (text == "|" and not self.bars)
        return kind in ("number", "letter", "run", "name") or (kind == "word" and len(text) == 1)

    def power(self) -> Expression:
        closed, base = self.next() in ("(", "["), self.atom()
        while self.next() in ("!", "^"):
            if self.take("^"):
                closed = self.next() == "{"
                base = call("^", base, self.script())
            else:
                closed, base = True, self.factorial(base)
        self.closed = closed
        return base

    def factorial(self, base: Expression) -> Expression:
        marks = 0
        while self.take("!"):
            marks += 1
        if marks > 2:
            raise Unreadable("a factorial of several steps")
        return call("factorial" if marks == 1 else "factorial2", base)

    def script(self) -> Expression:
        if sign := self.take("-", "+"):
            return _with(sign, self.script())
        if self.next() == "{":
            return self.group()
        return self.power() if self.lexemes and self.lexemes[-1].kind == "number" else self.atom()

    def group(self) -> Expression:
        opening = self.lexemes.pop().text
        outer, self.bars = self.bars, opening == "|"
        inner = self.sum()
        self.bars = outer
        if not self.take(_CLOSED_BY[opening]):
            raise Unreadable(f"{opening} is not closed")
        return call(_BRACKET_FUNCTIONS[opening], inner) if opening in _BRACKET_FUNCTIONS else inner

    def atom(self) -> Expression:
        if not self.lexemes:
            raise Unreadable("something is missing")
        kind, text, _ = self.lexemes[-1]
        if kind == "mark" and text in _CLOSED_BY:
            return self.group()
        self.lexemes.pop()
        if kind == "number":
            return self.number(text)
        if kind == "mark" and text in ("π", "∞"):
            return symbol(text)
        if kind == "name" and text in FUNCTIONS:
            return self.function(text)
        if kind == "run" and len(text) <= 4:
            self.lexemes += [Lexeme("letter", letter, False) for letter in reversed(text[1:])]
            return self.symbol(text[0])
        if kind in ("letter", "name") or (kind == "word" and len(text) == 1):
            return self.symbol(text)
        raise Unreadable(f"{text} is unknown")

    def number(self, text: str) -> Expression:
        plain, _, repeating = text.rstrip("}").partition(r"\overline{")
        mantissa, _, power = plain.lower().partition("e")
        if len(power.lstrip("+-")) > LONGEST_POWER or (repeating and "." not in plain):
            raise Unreadable("no number that is written out")
        value = Fraction(mantissa.rstrip(".") or "0")
        if repeating:
            value += Fraction(int(repeating), 10 ** len(plain.partition(".")[2]) * (10 ** len(repeating) - 1))
        value *= Fraction(10) ** int(power or 0)
        if self.next() in SCALES:
            value *= 10 ** SCALES[self.lexemes.pop().text]
        if "." not in text and len(self.lexemes) >= 3 and self.lexemes[-1].spaced:  # 1 2/3
            over, slash, under = (lexeme.text for lexeme in self.lexemes[:-4:-1])
            if slash == "/" and over.isdecimal() and under.isdecimal() and 0 < int(over) < int(under):
                del self.lexemes[-3:]
                return number(value + Fraction(int(over), int(under)))
        return number(value, "." in text and not repeating)

    def symbol(self, name: str) -> Expression:
        if self.take("_"):
            name += "_" + self.subscript()
        while self.take("'"):
            name += "'"
        return symbol(name)

    def subscript(self) -> str:
        if not self.lexemes:
            raise Unreadable("no subscript")
        text, depth = "", 0
        while True:
            if not self.lexemes:
                raise Unreadable("an open subscript")
            lexeme = self.lexemes.pop().text
            depth += (lexeme == "{") - (lexeme == "}")
            text += lexeme if lexeme not in "{}" else ""
            if not depth:
                return text

    def argument(self) -> Expression:
        r"""One of ``\frac``'s: a group, or a single digit or letter."""
        if self.lexemes and self.lexemes[-1].kind == "number" and len(text := self.next()) > 1:
            if not text.isdecimal():
                raise Unreadable("a decimal without braces")
            self.lexemes[-1] = Lexeme("number", text[1:], False)
            return number(int(text[0]))
        return self.group() if self.next() == "{" else self.atom()

    def function(self, name: str) -> Expression:
        if name in ("frac", "binom"):
            over = self.argument()
            return call("/" if name == "frac" else "binom", over, self.argument())
        if name in ("sqrt", "cbrt"):
            degree = number(3) if name == "cbrt" else self.group() if self.next() == "[" else number(2)
            return call("root", self.atom(), degree)
        base = self.script() if name == "log" and self.take("_") else number(10) if name == "lg" else None
        power = self.script() if self.take("^") else None
        if name == "log" and base is None and self.take("_"):
            base = self.script()
        if power == call("neg", number(1)) and name in ("sin", "cos", "tan"):
            name, power = "arc" + name, None
        argument = self.group() if self.next() in ("(", "{", "[") else self.open_argument()
        value = call("ln" if name in ("log", "lg") else name, argument)
        value = value if base is None else call("/", value, call("ln", base))
        return value if power is None else call("^", value, power)

    def open_argument(self) -> Expression:
        """What stands beside a function's name: all that is multiplied with it without a sign."""
        argument = self.power()
        while self.begins() and self.next() not in _INSIDE_ARGUMENTS and self.next() != "(":
            argument = _side_by_side(argument, self.power())
        return argument


def _with(sign: str, expression: Expression) -> Expression:
    return expression if sign == "+" else call("neg" if sign == "-" else sign, expression)


def _side_by_side(left: Expression, right: Expression) -> Expression:
    r"""``1\frac{2}{3}`` is a mixed number; other pairs without brackets are products, unless they could be either."""
    whole, part = written(left), written(right)
    if right.op != "/" or left.op != "number" or part is None or whole is None:
        return call("*", left, right)
    if whole.decimal or not 0 < part.value < 1:
        raise Unreadable("neither a mixed number nor a product")
    return number(whole.value + part.value)
