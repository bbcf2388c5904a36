"""Letters of multiple-choice questions."""

import re

from oblr.problem import Problem
from oblr.rewards.answer import AnswerReward

_LETTER = re.compile(
    r"""(?:option|choice)?\s*
        \(?([A-Z])\)?                # B or (B)
        (?:[.):]+(?:\s.*)?)?         # with or without what it stands for: "B. 42", "B) 42", "B: 42"
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
#: A letter dressed up in LaTeX.
_DRESS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\b|[{}$*\\]")


class MultipleChoiceReward(AnswerReward):
    r"""1 where the answer is the problem's letter, else 0: ``B``, ``(B)``, ``B.``, ``B) 42``,
    ``\text{B}``, ``option B``.

    More than one letter is none.
    """

    def correct(self, problem: Problem, answer: str) -> bool:
        return self.spelling(answer) == self.spelling(problem.answer)

    def spelling(self, answer: str) -> str:
        letter = _LETTER.fullmatch(_DRESS.sub("", answer).strip())
        return letter[1].upper() if letter else answer.strip()
