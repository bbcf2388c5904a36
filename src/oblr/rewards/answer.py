"""Find the final answer in a response. Which part of a response counts is decided here, for all rewards."""

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from oblr.answers.statements import final_answer
from oblr.problem import Completion, Problem


class Format(Protocol):
    """Where the final answer stands in a response."""

    def extract(self, text: str, completion: Completion) -> str | None:
        """The answer, or None where the response gives none."""


@dataclass(frozen=True)
class AnswerFormat:
    """The answer is all that follows the last ``marker`` in the response.

    Args:
        marker: the answer is what follows the last of these.
        require_end: whether a response that the token limit cut has no answer.
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
    r"""The answer is what the last ``\boxed{…}`` or ``\fbox{…}`` holds; else what the response states without one.

    ``docs/answers.md`` says in full what counts as stated, and what as two answers, which are none.

    Args:
        require_end: whether a response that the token limit cut has no answer.
    """

    require_end: bool = True

    def extract(self, text: str, completion: Completion) -> str | None:
        return None if self.require_end and not completion.finished else final_answer(text)

    def write(self, answer: str) -> str:
        """A response that gives this answer."""
        return f"\\boxed{{{answer}}}"


#: A number whose commas separate groups of three digits, with a sign and a currency or without.
_THOUSANDS = re.compile(r"[+-]?[$€£¥₹]?[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?%?", re.ASCII)


class AnswerReward(ABC):
    """1 where the response's final answer is :meth:`correct`, else 0: nothing else of the response counts.

    Args:
        format: what of a response is its answer.
    """

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
