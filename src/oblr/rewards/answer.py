"""Find the final answer in a response, and score it."""

from dataclasses import dataclass

from oblr.types import Completion, Problem


@dataclass(frozen=True)
class AnswerFormat:
    """Where the final answer stands in a response.

    Args:
        marker: the answer is what follows the last ``marker`` in the response.
        require_end: a response that the token limit cut has no answer.
    """

    marker: str = "Answer:"
    require_end: bool = True

    def extract(self, text: str, completion: Completion) -> str | None:
        """The answer, or None where the response gives none."""
        if (self.require_end and not completion.finished) or self.marker not in text:
            return None
        return text.rpartition(self.marker)[2].strip()


class ExactReward:
    """1 where the extracted answer is the problem's answer, after thousands separators and a final period; else 0."""

    def __init__(self, format: AnswerFormat):
        self.format = format

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        answer = self.format.extract(text, completion)
        return float(answer is not None and _plain(answer) == _plain(problem.answer))

    def answer(self, text: str, completion: Completion) -> str | None:
        """What majority votes count; None where the response gives no answer."""
        answer = self.format.extract(text, completion)
        return None if answer is None else _plain(answer)


def _plain(answer: str) -> str:
    return answer.strip().removesuffix(".").replace(",", "")
