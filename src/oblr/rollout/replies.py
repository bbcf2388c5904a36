"""Is what an engine gives what it was asked for? Nothing that does not fit is trained on, or counted."""

import math
from collections.abc import Iterable, Sequence

import torch

from oblr.batch.types import Sampling
from oblr.errors import GarbledError
from oblr.problem import Completion
from oblr.rollout.engine import Done, Engine
from oblr.rollout.readback import Block, Part

#: A log-probability is at most 0, up to the rounding of what it was computed in, nats.
ROUNDING = 1e-3


def ask(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seeds: Sequence[int],
    vocabulary: int | None,
    done: Done | None = None,
) -> list[list[Completion]]:
    """What `oblr.rollout.engine.Engine.generate` gives, if that is completions of these prompts.

    Args:
        vocabulary: how many tokens the policy has; None: nobody knows.
        done: told of each response that ends and can be one; what is told may be of a reply that is refused in the end.

    Raises:
        GarbledError: it is something else.
        StaleEngineError, EngineDiedError: as the engine does.
    """

    def ended(query: int, j: int, completion: Completion) -> None:
        if done is not None and not wrong(completion, sampling, vocabulary):
            done(query, j, completion)

    groups = engine.generate(prompts, sampling, seeds, ended)
    if len(groups) != len(prompts):
        raise GarbledError(f"the rollout engine answered {len(groups)} prompts of {len(prompts)}")
    for place, group in enumerate(groups):
        if len(group) != sampling.n:
            raise GarbledError(f"the rollout engine gave {len(group)} responses to a prompt, not {sampling.n}")
        for completion in group:
            if fault := wrong(completion, sampling, vocabulary):
                raise GarbledError(f"the rollout engine gave prompt {place + 1} of {len(prompts)} a response {fault}")
    return groups


def wrong(completion: Completion, sampling: Sampling, vocabulary: int | None) -> str | None:
    """What is wrong with it, if something is."""
    ids, logprobs, finished = completion.token_ids, completion.logprobs, completion.finished
    if not 1 <= len(ids) <= sampling.max_new_tokens:
        return f"of {len(ids)} tokens, where 1 to {sampling.max_new_tokens} were asked for"
    if strange := [one for one in ids if type(one) is not int]:
        return f"with {strange[0]!r:.40} among its tokens"
    if min(ids) < 0 or (vocabulary is not None and max(ids) >= vocabulary):
        return f"with token {min(ids) if min(ids) < 0 else max(ids)}, which the policy does not have"
    if len(logprobs) != len(ids):
        return f"of {len(ids)} tokens with {len(logprobs)} log-probabilities"
    if odd := [one for one in logprobs if type(one) is not float or not -math.inf < one <= ROUNDING]:
        return f"with {odd[0]!r:.40} for a log-probability"
    ends = set(sampling.end_ids)
    if not ends.isdisjoint(ids[:-1]):
        return "that goes on after its end"
    if finished is not (ids[-1] in ends):
        return "that is said to have ended, without an end token" if finished else "that ended, and is said not to have"
    if not finished and len(ids) < sampling.max_new_tokens:
        return f"of {len(ids)} tokens that neither ended nor is as long as it may be, {sampling.max_new_tokens}"
    return None


def in_order(numbered: Iterable[tuple[int, Completion]], count: int) -> list[Completion]:
    """Completions by their numbers.

    Raises:
        GarbledError: these are not 0 to ``count`` - 1, each once.
    """
    pairs = list(numbered)
    numbers = [number for number, _ in pairs]
    if any(type(number) is not int for number in numbers) or sorted(numbers) != list(range(count)):
        raise GarbledError(f"the rollout engine gave responses {numbers!s:.80} to a prompt, not 0 to {count - 1}")
    return [completion for _, completion in sorted(pairs, key=lambda pair: pair[0])]


def check_parts(blocks: Sequence[Block], found: Sequence[Sequence[Part]]) -> Sequence[Sequence[Part]]:
    """``found`` by `oblr.rollout.engine.Engine.read`, if that can be parts of these blocks.

    Raises:
        GarbledError: it cannot.
    """
    for parts in found:
        if len(parts) != len(blocks):
            raise GarbledError(f"the rollout engine gave {len(parts)} of {len(blocks)} blocks of its weights")
        for block, part in zip(blocks, parts, strict=True):
            if not _fits(block, part):
                raise GarbledError(f"the rollout engine gave something else for a block of its {block.name}")
    return found


def _fits(block: Block, part: Part) -> bool:
    if not all(isinstance(one, torch.Tensor) for one in part):
        return False
    for own, indices in ((block.rows, part.rows), (block.columns, part.columns)):
        if indices.dim() != 1 or indices.dtype != torch.int64 or ((indices < 0) | (indices >= len(own))).any():
            return False
    shape = (len(part.rows), len(part.columns))
    return tuple(part.values.shape) in (shape, shape[:1]) and part.values.is_floating_point()
