"""Letters of multiple-choice questions."""

import re

from oblr.problem import Problem
from oblr.rewards.answer import AnswerReward

_LETTER = re.compile(
    r"""(?:option|choice)?\s*
        (?:\(([A-Z])\)|([A-Z])(?![A-Z]))  # (B) or B
        [.):]*\s*(.*)                     # with or without what it stands for: "B. 42", "B) 42", "B: 42"
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
#: A letter dressed up in LaTeX.
_DRESS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\b|[{}$*\\]")


class MultipleChoiceReward(AnswerReward):
    r"""1 where the answer is the problem's letter, else 0: ``B``, ``(B)``, ``B.``, ``\text{B}``, ``option B``.

    What stands beside it, as in ``B) 42``, must be what stands beside that letter in the question. More than one
    letter is none.
    """

    def correct(self, problem: Problem, answer: str) -> bool:
        letter, rest = option(answer)
        return letter is not None and letter == option(problem.answer)[0] and offered(problem.prompt, letter, rest)

    def spelling(self, answer: str) -> str:
        return option(answer)[0] or answer.strip()


def option(answer: str) -> tuple[str | None, str]:
    """The letter, and what stands beside it; no letter where the answer is something else."""
    match = _LETTER.fullmatch(_plain(answer))
    return ((match[1] or match[2]).upper(), match[3]) if match else (None, answer)


def offered(question: str, letter: str, rest: str) -> bool:
    """Whether the question has ``rest`` beside that letter; nothing is always beside it."""
    if not rest:
        return True
    beside = rf"\(?{letter}[.):]+\s*{re.escape(_plain(rest).rstrip('.'))}(?!\w)"
    return re.search(beside, _plain(question), re.IGNORECASE) is not None


def _plain(text: str) -> str:
    return " ".join(_DRESS.sub("", text).split())
