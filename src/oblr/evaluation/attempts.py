"""What a policy answers to the problems of a benchmark."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, Protocol

from transformers import PreTrainedTokenizerBase

from oblr.batch.types import Sampling
from oblr.data.distinct import check_distinct
from oblr.data.ends import stopped
from oblr.data.prompts import check_ids, encode
from oblr.errors import SettingError
from oblr.kinds import Count, Part, Word
from oblr.problem import Completion, Problem, UnsavedTokens
from oblr.rewards.base import Reward
from oblr.rewards.golds import Golds
from oblr.rewards.pool import RewardPool
from oblr.rewards.tryout import try_out
from oblr.run.randomness import derived_seed
from oblr.run.responses import verdict
from oblr.run.terminal import say

#: Completions of prompts: what `oblr.rollout.engine.Engine.generate` does.
Generate = Callable[[Sequence[Sequence[int]], Sampling, Sequence[int]], list[list[Completion]]]

#: Tokens of a response where nobody says: worked solutions of mathematical benchmarks are rarely longer.
ENOUGH = 2048


class Source(Protocol):
    """Problems by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Problem: ...


@dataclass(frozen=True)
class Benchmark:
    """Problems, how responses to them are scored, and how long those may be.

    A reward that has a method ``answer(text, completion)`` scores verdicts: right or wrong. Any other gives a number.

    Args:
        problems: what is asked.
        reward: what scores a response. One that has a method ``judges(problem)`` says of which problems.
        max_new_tokens: longest response, tokens; None: as long as the context and :data:`ENOUGH` let it be.
        prose: whether problems that the reward does not judge are left out: prose and proofs score for the same
            spelling alone.
        readable, trust: as for :class:`~oblr.rewards.pool.RewardPool`.
    """

    problems: Annotated[Source, Part("oblr.data")]
    reward: Reward
    max_new_tokens: Count | None
    prose: Literal["leave_out", "keep"] = "leave_out"
    readable: Sequence[Word] = ()
    trust: bool = False

    @cached_property
    def pool(self) -> RewardPool:
        """The processes that score; they start with the first response."""
        return RewardPool(self.reward, readable=self.readable, trust=self.trust)

    @cached_property
    def golds(self) -> Golds:
        """The problems' answers as the reward takes them."""
        return Golds(self.reward, self.pool, lambda text: UnsavedTokens(len(text)), self.prose == "keep")

    def try_out(self, problems: Sequence[Problem], name: str, encode: Callable[[str], Sequence[int]]) -> list[str]:
        """Lines on what :func:`~oblr.rewards.tryout.try_out` finds, and on problems that look the same.

        Args:
            problems: of :meth:`first`.
            name: of the benchmark.
            encode: token ids of a response.
        """
        self.golds.encode, setting = encode, f"benchmarks.{name}"
        same = check_distinct(problems, [problem.prompt for problem in problems], setting)
        return [self.pool.words, *same, *try_out(self.golds, problems, setting)]

    def first(self, limit: int | None) -> list[Problem]:
        """Of the first ``limit`` problems, or all, those that the reward can judge.

        Raises:
            SettingError: two have the same id, or it can judge none.
        """
        return self.judged(limit)[0]

    def judged(self, limit: int | None) -> tuple[list[Problem], int]:
        """:meth:`first`, and how many of the first ``limit`` problems have been left out."""
        size = len(self.problems) if limit is None else min(limit, len(self.problems))
        problems, seen = [self.problems[i] for i in range(size)], set()
        for problem in problems:
            if problem.id in seen:
                raise SettingError("benchmarks", f"two problems have the id {problem.id}", "give each its own")
            seen.add(problem.id)
        kept = problems
        if (judges := getattr(self.reward, "judges", None)) is not None and self.prose != "keep":
            kept = [one for one, read in zip(problems, self.golds.read(problems), strict=True) if judges(read)]
        if problems and not kept:
            raise SettingError(
                "benchmarks",
                f"all {size} answers are prose, as that of {problems[0].id}",
                "use another reward, or benchmarks.<name>.prose=keep",
            )
        return kept, size - len(kept)

    def tell_failures(self, name: str) -> None:
        """In a line, if any response was scored 0 for another reason than what it says."""
        if self.pool.timeouts or self.pool.errors:
            say(f"{name:11} scored 0: {self.pool.timeouts} that took too long, {self.pool.errors} that failed")

    def answers(self, texts: Sequence[str], completions: Sequence[Completion]) -> list[str | None] | None:
        """What majority votes count; None where the reward has no verdicts."""
        answer = getattr(self.reward, "answer", None)
        return answer and [answer(text, completion) for text, completion in zip(texts, completions, strict=True)]


@dataclass(frozen=True)
class Attempts:
    """What was tried at one problem; the lists have one entry a response, ``lengths`` in tokens.

    ``answers`` are what majority votes count, None for a response without one; None where the reward has no verdicts.
    ``finished`` is False where the token limit cut the response. ``outcomes`` say whether it was scored, or why
    not, and ``parts`` add up to the reward where it has some; files of earlier versions have neither.
    """

    id: str
    prompt: str
    answer: str
    responses: list[str]
    answers: list[str | None] | None
    rewards: list[float]
    lengths: list[int]
    finished: list[bool]
    outcomes: list[str] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)

    @property
    def pass_rate(self) -> float:
        """Share of right responses."""
        return sum(reward >= 1 for reward in self.rewards) / len(self.rewards)

    def row(self) -> dict[str, Any]:
        return asdict(self) | {"pass_rate": self.pass_rate}

    def rollouts(self, place: int) -> Iterator[dict[str, Any]]:
        """Each response as ``rollouts/`` of a run has it, the problem being group ``place``; ``right`` is a verdict."""
        for i, text in enumerate(self.responses):
            yield {
                "group": place,
                "response": i,
                "problem": self.id,
                "prompt": self.prompt,
                "answer": self.answer,
                "text": text,
                "tokens": self.lengths[i],
                "verdict": verdict(self.outcomes[i] if self.outcomes else "scored", self.finished[i]),
                "reward": self.rewards[i],
                "reward_parts": self.parts[i] if self.parts else {},
                "right": None if self.answers is None else self.rewards[i] >= 1,
                "read": None if self.answers is None else self.answers[i],
            }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Attempts":
        return cls(**{name: value for name, value in row.items() if name != "pass_rate"})


def check_tries(samples: int, ks: Sequence[int]) -> None:
    """Raises SettingError where so many tries at a problem cannot give pass@k of all ``ks``."""
    if not all(1 <= k <= samples for k in ks):
        raise SettingError("k", f"{list(ks)} are not numbers from 1 to samples={samples}", "use such, or more samples")


def new_tokens(
    benchmark: Benchmark, problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, context: int | None
) -> int:
    """The longest response: what was asked for, or :data:`ENOUGH`, or less where the context has no room for it."""
    if benchmark.max_new_tokens is not None:
        return benchmark.max_new_tokens
    prompt = max(len(encode(tokenizer, problem.prompt)) for problem in problems)
    return ENOUGH if context is None else max(1, min(ENOUGH, context - prompt))


def longest(
    benchmark: str,
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    max_new_tokens: int,
    context: int | None,
    vocabulary: int | None = None,
) -> int:
    """Tokens of the longest prompt plus response.

    Args:
        vocabulary: how many tokens the model has an embedding of.

    Raises:
        SettingError: they exceed the model's context, or a prompt has no tokens, or one without an embedding.
    """
    prompts = [encode(tokenizer, problem.prompt) for problem in problems]
    for problem, ids in zip(problems, prompts, strict=True):
        check_ids(ids, problem.id, vocabulary)
    lengths = [len(ids) + max_new_tokens for ids in prompts]
    most = max(lengths)
    if context is not None and most > context:
        problem = problems[lengths.index(most)]
        raise SettingError(
            f"benchmarks.{benchmark}.max_new_tokens",
            f"{max_new_tokens} with the {most - max_new_tokens} tokens of problem {problem.id} exceed a context of "
            f"{context}",
            "lower it, or leave the benchmark out",
        )
    return most


def problem_seed(seed: int, problem: str) -> int:
    """Of the first try at the problem with this id; the next ones add 1 each. It depends on nothing else."""
    return derived_seed(seed, problem)


def attempt(
    benchmark: Benchmark,
    problems: Sequence[Problem],
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    seed: int,
) -> list[Attempts]:
    """Sample and score ``sampling.n`` responses to each of these problems of the benchmark."""
    prompts = [encode(tokenizer, problem.prompt) for problem in problems]
    groups = generate(prompts, sampling, [problem_seed(seed, problem.id) for problem in problems])
    ended = [stopped(tokenizer, completion, sampling) for group in groups for completion in group]
    return judge(benchmark, problems, [text for _, text in ended], [completion for completion, _ in ended])


def judge(
    benchmark: Benchmark, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
) -> list[Attempts]:
    """Score responses, as many to each problem and in the order of the problems."""
    n = len(texts) // len(problems)
    asked = benchmark.golds.read(problems)
    scored = benchmark.pool.score([problem for problem in asked for _ in range(n)], texts, completions)
    answers = benchmark.answers(texts, completions)
    shares = [slice(start, start + n) for start in range(0, len(texts), n)]
    return [
        Attempts(
            problem.id,
            problem.prompt,
            problem.answer,
            list(texts[share]),
            answers and answers[share],
            [one.reward for one in scored[share]],
            [len(completion.token_ids) for completion in completions[share]],
            [completion.finished for completion in completions[share]],
            [one.outcome for one in scored[share]],
            [one.parts for one in scored[share]],
        )
        for problem, share in zip(asked, shares, strict=True)
    ]
