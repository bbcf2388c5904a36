"""Versions of the weights that sampled each token of a response, where these are replaced meanwhile.

See ``rollout.in_flight``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from oblr.batch.types import RolloutBatch
from oblr.errors import EngineDiedError
from oblr.problem import Completion
from oblr.run.ranks import of_run


def spans(told: Sequence[Mapping[str, Any]], count: int) -> tuple[tuple[int, int], ...]:
    """(version, tokens) of vLLM's ``weight_versions`` of a response of ``count`` tokens.

    Raises:
        LookupError, TypeError, ValueError: they do not follow each other from its first token to its last, or a later
            one is of older weights.
    """
    found = [(int(one["version"]), one["end"] - one["start"]) for one in told]
    starts, ends = [one["start"] for one in told], [one["end"] for one in told]
    if [0, *ends] != [*starts, count] or any(tokens < 1 for _, tokens in found):
        raise ValueError(f"versions of tokens {list(zip(starts, ends, strict=True))!s:.80}, of {count}")
    versions = [version for version, _ in found]
    if versions != sorted(set(versions)):
        raise ValueError(f"versions {versions!s:.80}, one after the other")
    return tuple(found)


def check_versions(groups: Iterable[Iterable[Completion]], oldest: int, newest: int) -> None:
    """Raises EngineDiedError where a token is of older weights than it may be, or of newer ones than were sent."""
    for completion in (completion for group in groups for completion in group):
        for version, _ in completion.versions:
            if not oldest <= version <= newest:
                expected = str(newest) if oldest == newest else f"{oldest} to {newest}"
                raise EngineDiedError(f"the rollout engine gave tokens of version {version}, not {expected}")


def mean_age(batch: RolloutBatch, newest: int) -> float:
    """Steps between the weights of a token and the ``newest``, mean over the tokens of all ranks. Collective."""
    of_tokens = [
        span
        for completion in (rollout.completion for rollout in batch.rollouts)
        for span in completion.versions or [(batch.weight_version, len(completion.token_ids))]
    ]
    sums = [sum((newest - version) * tokens for version, tokens in of_tokens), sum(tokens for _, tokens in of_tokens)]
    age, tokens = of_run().reduce(torch.tensor(sums, dtype=torch.float64)).tolist()
    return float(age / tokens)
