"""A reward and its problems, tried on each other before anything is trained or measured by them.

Can an answer be paid at all, and is what says nothing paid less?
"""

import time
from collections.abc import Iterator, Sequence

from oblr.errors import SettingError
from oblr.problem import Problem
from oblr.rewards.base import name
from oblr.rewards.golds import Golds

#: Answers of a source that are tried at most; a run tries the others when it draws them.
TRIED = 1000
#: Seconds after which no more are.
LONGEST = 10.0
#: Problems that are tried with responses that say nothing.
PROBED = 16
NOTHING = ("", "vorpal quix zindle")
#: What is right now and then, and cannot be always.
CONSTANTS = ("0", "1", "True", "A", "None", "[]")
#: Problems on which a reward fails before it is said to fail.
HOPELESS = 3
#: Share of problems that are not right by chance, nor by a choice of two.
USUAL = 7 / 8
#: Fewer problems may all have the same answer, in different spellings.
FEW = 8


def try_out(golds: Golds, problems: Sequence[Problem], setting: str) -> list[str]:
    """What the user is to know of the reward and these problems, in lines.

    Args:
        setting: how the user calls the problems.

    Raises:
        SettingError: a reward that fails on every answer; or one that gives verdicts, but can pay none of the answers,
            pays for nothing, or for one and the same answer whatever is asked.
    """
    step = -(-len(problems) // TRIED)
    sample = [problems[i] for i in range(0, len(problems), step)]
    return _verdicts(golds, sample, setting) if golds.verdicts else _numbers(golds, _few(sample), setting)


def _verdicts(golds: Golds, problems: list[Problem], setting: str) -> list[str]:
    reward, notes = name(golds.reward), []
    read = list(_in_time(golds, problems))
    tried = problems[: len(read)]
    count = f"{len(tried):,}" if len(tried) == len(problems) else f"{len(tried):,} tried"
    paid = [one for one, problem in zip(read, tried, strict=True) if golds.pays(problem)]
    if unpaid := [problem for problem in tried if not golds.pays(problem)]:
        first = unpaid[0]
        one = f"{_short(first.answer)} of problem {first.id}, for one"
        if not paid:
            _failing(golds, first)
            raise SettingError(
                setting,
                f"no response can be right by {reward} on any of {count} problems: the answer is {one}",
                "name the column that has final answers (data.columns.answer), or use another reward",
            )
        notes.append(f"{setting}: {len(unpaid):,} of {count} answers can never be paid by {reward}: {one}")
    if changed := [(a, b) for a, b in zip(tried, read, strict=True) if a.answer != b.answer]:
        before, after = changed[0]
        notes.append(
            f"{setting}: {len(changed):,} of {count} answers are read as what is boxed, marked or listed in them: "
            f"{_short(before.answer)} as {_short(after.answer)}, for one"
        )
    return notes + _for_nothing(golds, _few(paid), setting)


def _in_time(golds: Golds, problems: list[Problem]) -> Iterator[Problem]:
    end = time.monotonic() + LONGEST
    for start in range(0, len(problems), 250):
        if time.monotonic() < end:
            yield from golds.read(problems[start : start + 250])


def _for_nothing(golds: Golds, problems: list[Problem], setting: str) -> list[str]:
    """Raises SettingError where any text is right, or one and the same answer to all problems."""
    reward, write = name(golds.reward), golds.forms()[0]
    empty = [*NOTHING, *map(write, NOTHING)]
    texts = [*empty, *map(write, (*CONSTANTS, *(problem.answer for problem in problems[:3])))]
    verdicts = iter(golds.ask([(problem, text) for problem in problems for text in texts]))
    right = [{text for text in texts if next(verdicts).reward >= 1} for _ in problems]
    for text in texts:
        pays = [problem for problem, paid in zip(problems, right, strict=True) if text in paid]
        differ = len({problem.answer for problem in problems}) > FEW // 2
        always = len(problems) >= FEW and len(pays) >= USUAL * len(problems) and differ
        if always or (text in empty and len(pays) > 1):
            raise SettingError(
                "reward",
                f"by {reward}, the response {_short(text)} is right on {len(pays)} of {len(problems)} problems that "
                f"were tried, though the answer to problem {pays[-1].id} is {_short(pays[-1].answer)}",
                "use another reward, or other problems",
            )
        if text in empty and pays:
            return [f"{setting}: by {reward}, the response {_short(text)} is right on problem {pays[0].id}"]
    return []


def _numbers(golds: Golds, problems: list[Problem], setting: str) -> list[str]:
    """The answer against responses that say nothing, by a reward of which nobody knows what full pay is."""
    end, failed, low = time.monotonic() + LONGEST, 0, []
    for tried, problem in enumerate(problems):
        if tried and time.monotonic() > end:
            break
        idle = [verdict for verdict in golds.ask([(problem, text) for text in NOTHING]) if verdict.outcome == "scored"]
        nothing, best, scored = max((verdict.reward for verdict in idle), default=-float("inf")), -float("inf"), False
        for forms in (["{}".format], golds.forms()):
            said = golds.ask([(problem, form(problem.answer)) for form in forms])
            scored |= any(verdict.outcome == "scored" for verdict in said)
            best = max([best, *(verdict.reward for verdict in said if verdict.outcome == "scored")])
            if best > nothing:
                break
        failed += not scored
        if failed == tried + 1 == min(len(problems), HOPELESS):
            _failing(golds, problem)
        if scored and best <= nothing:
            low.append((problem, best, nothing))
    if not low or not golds.looks(low[0][0]):
        return []
    problem, best, nothing = low[0]
    return [
        f"{setting}: {name(golds.reward)} gives a response that says the answer no more than nonsense on {len(low)} of "
        f"{len(problems)} problems that were tried: {best:g} and {nothing:g} on problem {problem.id}, whose answer is "
        f"{_short(problem.answer)}"
    ]


def _failing(golds: Golds, problem: Problem) -> None:
    """Raises SettingError where the reward fails on the problem's answer, whatever form that has."""
    verdicts = golds.ask([(problem, form(problem.answer)) for form in golds.forms()])
    if all(verdict.outcome != "scored" for verdict in verdicts):
        raise SettingError("reward", f"{verdicts[-1].problem}, on problem {problem.id}", "mend the reward")


def _few(problems: list[Problem]) -> list[Problem]:
    """From all over, with as many answers as there are."""
    distinct = list({problem.answer: problem for problem in problems}.values())
    chosen = distinct if len(distinct) >= PROBED else problems
    count = min(PROBED, len(chosen))
    return [chosen[place * len(chosen) // count] for place in range(count)]


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")
