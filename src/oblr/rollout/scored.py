"""Rollouts of drawn problems: what the engine is asked for them, and what rewards make of its answers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from oblr.batch.types import Rollout, RolloutBatch, Sampling
from oblr.data.ends import stopped
from oblr.data.prompts import check_ids, encode
from oblr.errors import SettingError
from oblr.problem import Completion, Problem
from oblr.rewards.base import Reward
from oblr.rewards.golds import Golds
from oblr.rewards.pool import RewardPool
from oblr.rollout.ahead import Groups
from oblr.rollout.drawing import Drawn
from oblr.rollout.engine import Done, Engine
from oblr.rollout.live import LiveEngine
from oblr.rollout.recording import Question, Recording
from oblr.run.randomness import derived_seed
from oblr.run.timing import Stopwatch

log = logging.getLogger(__name__)


class ScoredEngine(LiveEngine):
    """An engine with the policy's weights, and a reward for what it samples.

    Args:
        engine, restarts, sync_timeout, seed, vocabulary: see :class:`LiveEngine`.
        sampling: of training.
        tokenizer: of the policy.
        max_model_len: longest prompt plus response, tokens.
        reward: scores one response.
        reward_pool: makes of it the processes that score.
        recording: keeps what the engine has answered, or has it kept; None: neither.

    Attributes:
        greedy: whether a greedy response to each prompt is to be sampled as well.
        warned: whether the user knows of a problem that cannot be paid.
    """

    def __init__(
        self,
        engine: Engine,
        restarts: int,
        sync_timeout: float,
        seed: int,
        vocabulary: int | None,
        sampling: Sampling,
        tokenizer: PreTrainedTokenizerBase,
        max_model_len: int,
        reward: Reward,
        reward_pool: Callable[[Reward], RewardPool],
        recording: Recording | None,
    ):
        super().__init__(engine, restarts, sync_timeout, seed, vocabulary)
        self.sampling, self.tokenizer, self.max_model_len = sampling, tokenizer, max_model_len
        self.reward, self.reward_pool = reward, reward_pool(reward)
        self.golds = Golds(reward, self.reward_pool, tokenizer.encode)
        self.recording = recording
        self.greedy = self.warned = False

    def questions(self, drawn: Drawn) -> dict[str, Question]:
        """The requests to the engine for a step, by what their responses are for: to train on, or greedy ones."""
        prompts = [self.encode(problem) for problem in drawn.problems]
        return {use: Question(prompts, sampling, self._seeds(use, drawn)) for use, sampling in self._uses.items()}

    def asks(
        self, drawn: Drawn, questions: Mapping[str, Question], ask: Callable[[Question, Done], Groups]
    ) -> tuple[int, dict[str, Callable[[Done], Groups]]]:
        """Functions that answer the questions, by use, and the version of the weights they answer by. Collective."""
        if self.recording is not None:
            return self.recording.asks(drawn, self.weight_version, questions, ask)
        return self.weight_version, {use: partial(ask, question) for use, question in questions.items()}

    def batch_of(
        self,
        drawn: Drawn,
        version: int,
        questions: Mapping[str, Question],
        asks: Mapping[str, Callable[[Done], Groups]],
        clock: Stopwatch,
    ) -> RolloutBatch:
        """Make a batch of the drawn problems, by weights of ``version``, of what ``asks`` give."""
        with clock.phase("reward"):
            problems, unpaid = self._meant(drawn.problems)
        found = {use: self.scored(problems, questions[use], asks[use], clock) for use in questions}
        greedy = torch.tensor([one.reward for one in found["greedy"]]) if "greedy" in found else None
        age = drawn.step + 1 - version
        return RolloutBatch(found["rollouts"], self.sampling.n, version, greedy, age, unpaid=unpaid)

    @property
    def _uses(self) -> dict[str, Sampling]:
        """How responses to each problem are sampled, by what they are for."""
        greedy = {"greedy": replace(self.sampling, n=1, temperature=0.0)} if self.greedy else {}
        return {"rollouts": self.sampling} | greedy

    def _seeds(self, use: str, drawn: Drawn) -> list[int]:
        return [derived_seed(use, self.seed, drawn.step, drawn.first + q) for q in range(len(drawn.problems))]

    def _meant(self, problems: Sequence[Problem]) -> tuple[list[Problem], int]:
        """With answers as the reward can pay them; how many it cannot, of which the run's first is a warning."""
        read = self.golds.read(problems)
        unpaid = [problem for problem in problems if not self.golds.pays(problem)]
        if unpaid and not self.warned:
            self.warned = True
            first = unpaid[0]
            log.warning(f"no response to problem {first.id} can be right: its answer is {first.answer!r:.80}")
        return read, len(unpaid)

    def scored(
        self, problems: Sequence[Problem], question: Question, sample: Callable[[Done], Groups], clock: Stopwatch
    ) -> list[Rollout]:
        """Score the responses that ``sample`` gives, each as it ends, while others are sampled."""
        n = question.sampling.n

        def read(place: int, completion: Completion) -> tuple[Problem, str, Completion]:
            completion, text = stopped(self.tokenizer, completion, question.sampling)
            return problems[place // n], text, completion

        with self.reward_pool.scoring(read) as scoring:
            groups = sample(lambda q, j, one: scoring.add(q * n + j, one))
            with clock.phase("reward"):  # what is left of it
                scored = scoring.scored([completion for group in groups for completion in group])
        prompts = [list(prompt) for prompt in question.prompts]
        return [
            Rollout(problem, prompts[place // n], completion, text, verdict.reward, verdict.outcome, verdict.parts)
            for place, ((problem, text, completion), verdict) in enumerate(scored)
        ]

    def encode(self, problem: Problem) -> list[int]:
        """Token ids of the prompt; raises SettingError where nothing can go on from it."""
        ids = encode(self.tokenizer, problem.prompt)
        check_ids(ids, problem.id, self.vocabulary)
        if len(ids) + self.sampling.max_new_tokens > self.max_model_len:
            raise SettingError(
                "rollout.max_model_len",
                f"the prompt of problem {problem.id} has {len(ids)} tokens, which with "
                f"rollout.max_new_tokens={self.sampling.max_new_tokens} exceeds {self.max_model_len}",
                "shorten prompts or responses, or raise it up to the policy's context",
            )
        return ids
