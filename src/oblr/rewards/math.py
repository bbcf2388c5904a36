"""Answers to mathematical problems."""

import logging
import re
from collections.abc import Iterable

import sympy
from math_verify import LatexExtractionConfig, parse, verify

from oblr.problem import Problem
from oblr.rewards.answer import AnswerReward
from oblr.rewards.numbers import hedged, read_number, tidy, words

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that nobody limits its time: the pool does

#: Characters of an answer; a longer one is wrong.
LONGEST = 1000
_CONFIG = [LatexExtractionConfig(boxed_match_priority=0)]
_SEPARATOR = re.compile(r"(?:,|;|(?<![A-Za-z])(?:and|or)(?![A-Za-z])|\\text ?\{ ?(?:and|or) ?\})+")
_BASED = re.compile(r"(-?[0-9A-F]+) ?_ ?(?:\{(\d+)\}|(\d))")
#: What is not worked out in an answer unless it is in the problem's, too.
_UNFINISHED = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)


class MathReward(AnswerReward):
    r"""1 where the answer is mathematically the problem's, else 0.

    - A number must be written out: digits, thousands separators, a fraction, a mixed number, a decimal, a power of
      ten, with or without percent, currency, degrees and unit (which are not compared). ``3^5 - 2`` is not an answer
      where 241 is asked for: it may be the question itself. Nothing is worked out, so nothing can hang.
    - Several answers (``1, 2``; ``\{1, 2\}``; ``1 \pm 2``) must all be there, none besides, in any order.
    - ``4210_5`` may leave its base out, but not name another one.
    - Everything else is left to math-verify, which is given the answer and nothing around it: expressions, equations,
      tuples, intervals, matrices, words.
    """

    def correct(self, problem: Problem, answer: str) -> bool:
        if len(answer) > LONGEST or not answer.strip():
            return False
        gold, given = tidy(problem.answer), tidy(answer)
        if _spelled(gold) == _spelled(given):
            return True
        golds, givens = _several(gold), _several(given)
        return len(golds) == len(givens) and _matched(golds, givens)

    def spelling(self, answer: str) -> str:
        return ", ".join(sorted(map(_spelled, _several(tidy(answer[:LONGEST])))))

    def warm_up(self) -> None:
        """The parser builds its tables on the first expressions: half of what most later ones take."""
        for latex in (
            r"\frac{\sqrt{2}}{2}",
            "x^2+1",
            r"(1, 2]",
            r"\frac{\pi}{2}-1",
            r"(0, 1) \cup [2, \infty)",
            "f(x)=2x",
        ):
            verify(_parsed(latex), _parsed(latex.replace("2", "3")), timeout_seconds=None)


def _several(latex: str) -> list[str]:
    """The answers in a tidy one."""
    if read_number(latex) is not None:
        return [latex]
    if latex.startswith(r"\{") and latex.endswith(r"\}"):
        latex = latex[2:-2]
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"[(\[{{}}\])]|{_SEPARATOR.pattern}", latex):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
        elif depth == 0:
            parts.append(latex[start : match.start()])
            start = match.end()
    parts = [part.strip() for part in (*parts, latex[start:]) if part.strip()]
    return [one for part in parts for one in (_both(part) if part.count(r"\pm") == 1 else [part])]


def _both(latex: str) -> Iterable[str]:
    return latex.replace(r"\pm", "+").removeprefix("+"), latex.replace(r"\pm", "-")


def _matched(golds: list[str], givens: list[str]) -> bool:
    """Whether each answer is there once."""
    rest = list(givens)
    for gold in golds:
        found = next((given for given in rest if _same(gold, given)), None)
        if found is None:
            return False
        rest.remove(found)
    return True


def _same(gold: str, given: str) -> bool:
    if _spelled(gold) == _spelled(given):
        return True
    if (number := read_number(gold)) is not None:
        other = read_number(given)
        return other is not None and number.agrees(other)
    if based := _BASED.fullmatch(gold):
        return re.fullmatch("-?[0-9A-F]+", given) is not None and given == based[1]
    if given.count("{") != given.count("}") or _side_by_side(given) or hedged(given):
        return False
    golds, givens = _parsed(gold), _parsed(given)
    if any(isinstance(e, sympy.Basic) and e.has(*_UNFINISHED) for e in givens) and not any(
        isinstance(e, sympy.Basic) and e.has(*_UNFINISHED) for e in golds
    ):
        return False
    return verify(golds, givens, timeout_seconds=None)


def _side_by_side(latex: str) -> bool:
    """Two numbers with nothing between them, which math-verify adds up."""
    return re.search(r"\d\s+\d", latex) is not None


def _parsed(latex: str) -> list[sympy.Basic | str]:
    """By math-verify, whole: in a box, from which it takes all or nothing."""
    return parse(rf"\boxed{{{latex}}}", _CONFIG, extraction_mode="first_match", parsing_timeout=None)


def _spelled(latex: str) -> str:
    if (number := read_number(latex)) is not None:
        return f"{number.value}{'%' if number.percent else ''}"
    text = re.sub(r"[<>]", "", words(latex))
    text = re.sub(r"(?<!\d) +| +(?!\d)", "", text)
    if re.fullmatch(r"\(?[A-Za-z]+\)?", text):
        return text.strip("()").casefold()
    return re.sub(r"\{(\w)\}", r"\1", text)
