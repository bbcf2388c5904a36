"""Find the final answer in a response. Which part of a response counts is decided here, for all rewards."""

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from oblr.problem import Completion, Problem


class Format(Protocol):
    """Where the final answer stands in a response."""

    def extract(self, text: str, completion: Completion) -> str | None:
        """The answer, or None where the response gives none."""


@dataclass(frozen=True)
class AnswerFormat:
    """The answer is all that follows the last ``marker`` in the response.

    Args:
        marker: what introduces the answer.
        require_end: a response that the token limit cut has no answer.
    """

    marker: str = "Answer:"
    require_end: bool = True

    def extract(self, text: str, completion: Completion) -> str | None:
        if (self.require_end and not completion.finished) or self.marker not in text:
            return None
        return text.rpartition(self.marker)[2].strip()

    def write(self, answer: str) -> str:
        """A response that gives this answer."""
        return f"{self.marker} {answer}"


@dataclass(frozen=True)
class BoxedFormat:
    r"""The answer is what the last ``\boxed{…}`` or ``\fbox{…}`` holds; else what follows the last marker.

    ``\boxed 5`` is a box, too, of what stands before the next space or dollar. Of a box in another the outer one
    counts; one that is never closed gives no answer, whatever stands in it. Markers are "answer is", "Answer:" in
    either case, and "####"; what follows ends with its line, or with a period before a space.

    Args:
        require_end: a response that the token limit cut has no answer.
    """

    require_end: bool = True

    def extract(self, text: str, completion: Completion) -> str | None:
        if self.require_end and not completion.finished:
            return None
        if _BOX.search(text):
            return _last_box(text)
        if (marker := _last(_MARKER, text)) is None:
            return None
        line = text[marker.end() :].strip(_DECORATION).partition("\n")[0]
        return _SENTENCE_END.split(line, maxsplit=1)[0].strip(_DECORATION)

    def write(self, answer: str) -> str:
        """A response that gives this answer."""
        return f"\\boxed{{{answer}}}"


_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:(?P<box>\{)|(?P<bare>[^\s{}$\\A-Za-z]+))")
_BOXES_AND_BRACES = re.compile(rf"{_BOX.pattern}|\\.|[{{}}]", re.DOTALL)
_MARKER = re.compile(r"answer:|answer is:?|####", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?=\s|\*|$)")
#: A number whose commas separate groups of three digits, with a sign and a currency or without.
_THOUSANDS = re.compile(r"[+-]?[$€£¥₹]?[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?%?", re.ASCII)
#: Of Markdown, around markers and answers.
_DECORATION = " \t\r\n*`"


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for last in pattern.finditer(text):  # noqa: B007
        pass
    return last


def _last_box(text: str) -> str | None:
    """What the last box holds; None where a box is open at the end of the text. Escaped braces are text."""
    opened: list[int | None] = []  # where the contents of each open brace begin, if it is a box's
    last = None
    for match in _BOXES_AND_BRACES.finditer(text):
        if match["box"]:
            opened.append(match.end())
        elif match["bare"]:
            last = match["bare"]
        elif match[0] == "{":
            opened.append(None)
        elif match[0] == "}" and opened and (start := opened.pop()) is not None:
            last = text[start : match.start()].strip()
    return last if all(start is None for start in opened) else None


class AnswerReward(ABC):
    """1 where the response's final answer is :meth:`correct`, else 0: nothing else of the response counts."""

    def __init__(self, format: Format):
        self.format = format

    @abstractmethod
    def correct(self, problem: Problem, answer: str) -> bool: ...

    def spelling(self, answer: str) -> str:
        """The same for answers that are the same, as far as their text shows it; majority votes count it."""
        return answer

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        answer = self.format.extract(text, completion)
        return float(answer is not None and self.correct(problem, answer))

    def answer(self, text: str, completion: Completion) -> str | None:
        """The final answer in its canonical spelling; None where there is none."""
        answer = self.format.extract(text, completion)
        return None if answer is None else self.spelling(answer)

    def key(self, problem: Problem, text: str, completion: Completion) -> Hashable:
        """What the verdict depends on."""
        return problem.id, problem.answer, self.format.extract(text, completion)


class ExactReward(AnswerReward):
    """1 where the extracted answer is the problem's, but for a final period and commas between thousands; else 0."""

    def correct(self, problem: Problem, answer: str) -> bool:
        return self.spelling(answer) == self.spelling(problem.answer)

    def spelling(self, answer: str) -> str:
        answer = answer.strip().removesuffix(".")
        return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer
