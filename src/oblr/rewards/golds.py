"""The answers of problems as a reward takes them: read as they are meant, and found out to be payable or not."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

from oblr.problem import AnswerRead, Completion, Problem, Sealed
from oblr.rewards.base import Reward
from oblr.rewards.gold import meant, readings
from oblr.rewards.pool import RewardPool
from oblr.rewards.verdicts import Verdict

#: How models write answers.
FORMS: tuple[Callable[[str], str], ...] = (
    "\\boxed{{{}}}".format,
    "The answer is {}.".format,
    "Answer: {}".format,
    "<answer>{}</answer>".format,
    "#### {}".format,
    "{}".format,
)
#: Answers that are remembered.
REMEMBERED = 65_536


class Golds:
    """Asks the reward itself, in the processes that score, with responses that give the answer as models write it.

    A reward that gives verdicts, see :class:`~oblr.rewards.base.Reward`, pays an answer where such a response has
    reward 1, and where the reward, if it has ``judges(problem)``, says that more than the spelling is compared. Of any
    other reward nobody knows what full pay is: its answers are taken as they are.

    Args:
        encode: token ids of a response.
        spelled: whether an answer may be one that nothing equals but its own spelling, as prose.
    """

    def __init__(self, reward: Reward, pool: RewardPool, encode: Callable[[str], Sequence[int]], spelled: bool = False):
        self.reward, self.pool, self.encode = reward, pool, encode
        self.judges = None if spelled else getattr(reward, "judges", None)
        self.verdicts = getattr(reward, "answer", None) is not None
        self.known: dict[tuple[str, str], tuple[str, bool]] = {}  # by id and answer: what it means, whether it is paid

    def read(self, problems: Sequence[Problem]) -> list[Problem]:
        """The same problems; an answer is what is boxed, marked or listed in it, where that can be paid."""
        if not self.verdicts:
            return list(problems)
        if len(self.known) > REMEMBERED:
            self.known.clear()
        new = {key: problem for problem in problems if (key := (problem.id, problem.answer)) not in self.known}
        self._learn(new.values(), lambda answer: [answer if (found := meant(answer)) is None else found])
        rest = [problem for key, problem in new.items() if key not in self.known]
        self._learn(rest, lambda answer: [answer, *readings(answer)])
        for key in new:
            self.known.setdefault(key, (key[1], False))
        answers = [self.known[problem.id, problem.answer][0] for problem in problems]
        return [
            problem if problem.answer == answer else replace(problem, answer=answer)
            for problem, answer in zip(problems, answers, strict=True)
        ]

    def pays(self, problem: Problem) -> bool:
        """Whether a response can be right; of a problem that :meth:`read` was given."""
        return not self.verdicts or self.known[problem.id, problem.answer][1]

    def _learn(self, problems: Iterable[Problem], candidates: Callable[[str], list[str]]) -> None:
        """Of each problem the first candidate that is paid."""
        pairs = [(one, replace(one, answer=text)) for one in problems for text in candidates(one.answer)]
        pairs = [(one, read) for one, read in pairs if self.judges is None or self.judges(read)]
        paid = {(one.id, one.answer) for one in self._said([read for _, read in pairs if read.answer])}
        paid |= {(read.id, "") for _, read in pairs if not read.answer and not self.looks(read)}
        for one, read in pairs:
            if (read.id, read.answer) in paid:
                self.known.setdefault((one.id, one.answer), (read.answer, True))

    def _said(self, problems: list[Problem]) -> list[Problem]:
        """Those of which some response that gives the answer has reward 1; the first form is enough for most."""
        first, *others = self.forms()
        verdicts = self.ask([(one, first(one.answer)) for one in problems])
        right = [one for one, verdict in zip(problems, verdicts, strict=True) if verdict.reward >= 1]
        rows = [
            (one, form(one.answer))
            for one, verdict in zip(problems, verdicts, strict=True)
            if verdict.reward < 1
            for form in others
        ]
        return right + [one for (one, _), verdict in zip(rows, self.ask(rows), strict=True) if verdict.reward >= 1]

    def forms(self) -> list[Callable[[str], str]]:
        """How responses may give an answer, the reward's own form first."""
        own = getattr(getattr(self.reward, "format", None), "write", None)
        return [*([own] if own else []), *FORMS]

    def looks(self, problem: Problem) -> bool:
        """Whether the reward looks at the problem's answer."""
        sealed = Sealed(problem.id, problem.prompt, "", problem.metadata)
        verdicts = self.ask([(sealed, form("0")) for form in self.forms()])
        return any(AnswerRead.__name__ in verdict.problem for verdict in verdicts)

    def ask(self, rows: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """What the reward gives each text as a response that has ended."""
        ids = [cast(list[int], self.encode(text)) for _, text in rows]
        completions = [Completion(one, [0.0] * len(one), finished=True) for one in ids]
        return (
            self.pool.probe([problem for problem, _ in rows], [text for _, text in rows], completions) if rows else []
        )
