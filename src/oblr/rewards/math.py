"""Answers to mathematical problems."""

from fractions import Fraction
from functools import lru_cache
from typing import Literal

from oblr.answers import units
from oblr.answers.comparing import Rules, same
from oblr.answers.reading import read
from oblr.answers.spelling import spelling
from oblr.answers.structure import Answer, Choice, Several, Unread, Words
from oblr.answers.values import warm_up
from oblr.kinds import RelativeError, checked
from oblr.problem import Problem
from oblr.rewards.answer import AnswerReward, Format
from oblr.rewards.multiple_choice import offered, option

#: Characters of an answer; a longer one is wrong.
LONGEST = 1000
#: Of an answer in words, as a name; more of them are prose.
MOST_WORDS = 3
_read = lru_cache(maxsize=4096)(read)


@checked("reward")
class MathReward(AnswerReward):
    """1 where the response's final answer is the problem's, as ``docs/answers.md`` says what that means; else 0.

    Both are read whole, as numbers, expressions, equations, sets, intervals and so on, and compared by what they are.
    What cannot be read is the same only where it is spelled the same. Nothing is simplified, so nothing can hang.

    Args:
        rounding: relative error of a decimal that stands for a number which no decimal is, as 0.333333 for 1/3.
        tolerance: relative error of any other number; 0: exactly equal.
        percent: ``either``: 8 % may stand for 8 and for 0.08; ``share``: for 0.08 alone.
    """

    def __init__(
        self,
        format: Format,
        rounding: RelativeError = 1e-6,
        tolerance: RelativeError = 0.0,
        percent: Literal["either", "share"] = "either",
    ):
        super().__init__(format)
        self.rules = Rules(Fraction(repr(float(rounding))), Fraction(repr(float(tolerance))), percent)

    def correct(self, problem: Problem, answer: str) -> bool:
        if len(answer) > LONGEST or not answer.strip():
            return False
        nouns = units.counted(problem.prompt)
        gold = _read(problem.answer, nouns)
        if same(gold, read(answer, nouns), self.rules):
            return True
        letter, rest = option(answer)
        return isinstance(gold, Choice) and letter == gold.text and offered(problem.prompt, letter, rest)

    def judges(self, problem: Problem) -> bool:
        """Whether the problem's answer can be compared with others; prose and proofs cannot."""
        gold = _read(problem.answer, units.counted(problem.prompt))
        items = gold.items if isinstance(gold, Several) else (gold,)
        return not any(isinstance(item, Unread) or _is_sentence(item) for item in items)

    def spelling(self, answer: str) -> str:
        return spelling(read(answer[:LONGEST]))

    def warm_up(self) -> None:
        """What is built once takes a second."""
        units.warm_up()
        warm_up()


def _is_sentence(item: Answer) -> bool:
    return isinstance(item, Words) and len(item.text.split()) > MOST_WORDS
