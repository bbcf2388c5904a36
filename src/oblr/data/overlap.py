"""Do two sets of problems share text?

By runs of 13 words, as Brown et al. 2020, arXiv 2005.14165, appendix C, say.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from oblr.data.source import Source
from oblr.problem import Problem

WORDS = 13


def runs(text: str) -> set[str]:
    """All runs of 13 words, in lower case and without punctuation; of a shorter text, all of it, with punctuation."""
    words = re.findall(r"\w+", text.lower())
    if len(words) < WORDS:
        return {" ".join(text.lower().split())}
    return {" ".join(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}


def question(problem: Problem) -> str:
    """What was asked, without what a prompt format adds to every question."""
    return str(problem.metadata.get("question", problem.prompt))


def overlaps(problems: Sequence[Problem], others: Iterable[Problem]) -> list[set[int]]:
    """Of each problem, the indices of the ``others`` that share a run of words with it."""
    owners: dict[str, set[int]] = defaultdict(set)
    for index, other in enumerate(others):
        for run in runs(question(other)):
            owners[run].add(index)
    return [
        set[int]().union(*(owners[run] for run in runs(question(problem)) if run in owners)) for problem in problems
    ]


class Disjoint:
    """Drops problems whose question shares a run of words with one of other sets.

    Args:
        held_out: problems that are left out.
        others: more of them, by name.
    """

    def __init__(self, held_out: Source, others: Mapping[str, Source]):
        self.sets = {"held_out": held_out, **others}

    def __call__(self, problems: Sequence[Problem]) -> tuple[list[bool], str]:
        kept, found = [True] * len(problems), []
        for name, others in self.sets.items():
            shared = overlaps(problems, others)
            kept = [keep and not other for keep, other in zip(kept, shared, strict=True)]
            if count := sum(map(bool, shared)):
                found.append(f"{count:,} with {len(set[int]().union(*shared)):,} of {len(others):,} in {name}")
        why = f"sharing {WORDS} words in a row, or all, with problems never to be trained on: " + ", ".join(found)
        return kept, why if found else ""
