"""What rewards see: a question, and a response to it. Without torch, so that processes that score start quickly."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One question with a verifiable answer. ``metadata`` is whatever its reward needs besides the answer."""

    id: str
    prompt: str
    answer: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """One response as the engine returns it.

    ``logprobs[t]`` is the natural log of the probability with which token ``t`` was drawn, temperature included.
    ``finished`` is False where the token limit cut the response; a finished one ends with an end token, or with the
    token that completes a stop string. ``versions`` says of which weights its tokens are, where these changed while it
    was sampled: (version, how many tokens), one after the other; empty where all are of those that it was asked of.
    """

    token_ids: list[int]
    logprobs: list[float]
    finished: bool
    versions: tuple[tuple[int, int], ...] = ()

    def ended_after(self, count: int) -> "Completion":
        """Its first ``count`` tokens, as one that ends there."""
        versions, left = list[tuple[int, int]](), count
        for version, tokens in self.versions:
            if left > 0:
                versions.append((version, min(tokens, left)))
            left -= tokens
        ids, logprobs = self.token_ids[:count], self.logprobs[:count]
        return replace(self, token_ids=ids, logprobs=logprobs, finished=True, versions=tuple(versions))


class AnswerRead(BaseException):
    """A reward has read the answer of a :class:`Sealed` problem. No ``except Exception`` of the reward's stops it."""


class Sealed(Problem):
    """A problem whose answer must not be read: tells whether a reward does."""

    def __getattribute__(self, name: str) -> Any:
        if name == "answer":
            raise AnswerRead
        return super().__getattribute__(name)


@dataclass(frozen=True)
class UnsavedTokens(Sequence[int]):
    """As many token ids as a saved response had; which ones, nobody has written down."""

    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: object) -> int:  # type: ignore[override]
        raise LookupError("the token ids of a saved response are not known: sample anew for a reward that reads them")
