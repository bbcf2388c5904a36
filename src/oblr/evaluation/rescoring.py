"""Responses that have been sampled before, and are scored by another reward."""

from collections.abc import Sequence
from typing import cast

from oblr.evaluation.attempts import Attempts, Benchmark, judge
from oblr.problem import Completion, Problem, UnsavedTokens


def completion(length: int, finished: bool) -> Completion:
    """Of a saved response, with what has been saved of it."""
    return Completion(cast(list[int], UnsavedTokens(length)), cast(list[float], UnsavedTokens(length)), finished)


def rejudge(benchmark: Benchmark, problems: Sequence[Problem], attempts: Sequence[Attempts]) -> list[Attempts]:
    """What the benchmark's reward says of earlier attempts at the same problems."""
    texts = [text for one in attempts for text in one.responses]
    saved = [completion(*facts) for one in attempts for facts in zip(one.lengths, one.finished, strict=True)]
    return judge(benchmark, problems, texts, saved)
