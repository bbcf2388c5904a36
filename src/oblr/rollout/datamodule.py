"""The data of an RL run: each epoch, new weights go into the engine and one batch of scored rollouts comes out."""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Protocol, TypeVar

import lightning as L
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from oblr.batch.types import Rollout, RolloutBatch, Sampling
from oblr.data.distinct import check_distinct
from oblr.data.ends import check_stop, stopped
from oblr.data.prompts import check_ids, encode
from oblr.errors import EngineDiedError, GarbledError, RunError, SettingError, StaleEngineError, SyncTimeoutError
from oblr.kinds import Count, Few, Given, Natural, Part, Positive, Seed, Temperature, Word, checked
from oblr.problem import Completion, Problem
from oblr.rewards.base import Reward
from oblr.rewards.golds import Golds
from oblr.rewards.pool import RewardPool
from oblr.rewards.tryout import TRIED, try_out
from oblr.rollout.deadline import deadline, end_process_after
from oblr.rollout.engine import Done, Engine, choose
from oblr.rollout.readback import NotedWeights
from oblr.rollout.replies import ask, check_parts
from oblr.run.randomness import derived_seed
from oblr.run.ranks import of_run
from oblr.run.timing import Stopwatch

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds that a run has to wind up after a sync that timed out: whatever hung may still hang.
WIND_UP = 30.0
#: What may happen to the engine of a rank: the last of these that happens to any of them happens to all.
FAILURES = (EngineDiedError, GarbledError, StaleEngineError)
#: A training source of at most this many problems is checked whole before the run, a larger one as it goes.
CHECKED = 20_000
#: Seconds in which problems of a larger one are drawn for that.
LOOK = 1.0
#: Training problems in a row that may be held out; a search among endless ones would never end.
PATIENCE = 20_000


class ProblemSource(Protocol):
    """A finite, indexable set of problems. One to train on has its next pass beyond its end."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Problem: ...


@checked("rollout")
class RolloutDataModule(L.LightningDataModule):
    """Samples ``group_size`` responses to each of ``prompts_per_step`` prompts, once per epoch.

    Args:
        engine: which of ``engines`` samples.
        engines: constructors of engines by name; only the chosen one is called.
        train: training problems; those whose prompt is also held out are skipped.
        held_out: problems that are never trained on.
        reward: scores one response.
        tokenizer: of the policy.
        end_ids: tokens that end a response.
        prompts_per_step: N, prompts a step over all ranks.
        group_size: G, responses to each prompt.
        temperature: of the behaviour policy; the policy's log-probabilities are taken at the same one.
        max_new_tokens: longest response, tokens.
        max_model_len: longest prompt plus response, tokens.
        seed: of the sampling; whenever the weights are the same, try ``j`` at prompt ``q`` of step ``t`` is the same.
        stop: strings before which a response ends, besides its end tokens.
        sync_timeout: longest that new weights may take from the policy to the engine, seconds.
        restarts: how often in one step an engine that dies is restarted.
        reward_pool: makes of the reward the processes that score.
        vocabulary: how many tokens the policy has an embedding of; None: as many as prompts have.

    Raises:
        SettingError: a setting that cannot work, a prompt too long for the context, or problems that the policy cannot
            tell apart.
    """

    def __init__(
        self,
        engine: str,
        engines: Mapping[str, Callable[[], Engine]],
        train: Annotated[ProblemSource, Part("oblr.data")],
        held_out: Annotated[ProblemSource, Part("oblr.data")],
        reward: Reward,
        tokenizer: Given[PreTrainedTokenizerBase],
        end_ids: Given[Sequence[int]],
        prompts_per_step: Few,
        group_size: Few,
        temperature: Temperature,
        max_new_tokens: Count,
        max_model_len: Count,
        seed: Seed,
        stop: Sequence[Word] = (),
        sync_timeout: Positive = 600.0,
        restarts: Natural = 3,
        reward_pool: Callable[[Reward], RewardPool] = RewardPool,
        vocabulary: Given[int | None] = None,
    ):
        super().__init__()
        self.sync_timeout, self.restarts, self.restarted = sync_timeout, restarts, 0
        self.started = False  # whether the engine has been, once
        self.engine = choose(engine, engines)
        self.train, self.reward, self.tokenizer = train, reward, tokenizer
        self.held_out = [held_out[i] for i in range(len(held_out))]
        self.held_out_prompts = {problem.prompt for problem in self.held_out}
        self.notes = [note for source in (train, held_out) for note in getattr(source, "notes", ())]
        self.prompts_per_step = prompts_per_step
        check_stop("rollout.stop", stop, tokenizer)
        self.sampling = Sampling(group_size, temperature, max_new_tokens, tuple(end_ids), stop=tuple(stop))
        self.max_model_len, self.seed, self.vocabulary = max_model_len, seed, vocabulary
        self.position = 0  # of the next training problem
        self.greedy = False  # whether a greedy response to each prompt is to be sampled as well
        self.clock = Stopwatch()
        self.weights: Callable[[], Iterable[tuple[str, Tensor]]] | None = None
        self.reward_pool = reward_pool(reward)
        self.golds = Golds(reward, self.reward_pool, tokenizer.encode)
        self.unpaid = 0  # problems of the last batch that no response can be paid for
        self.warned = False  # of one of them
        self.first = self._first()
        for name, problems in (("data.train", self.first), ("data.held_out", self.held_out)):
            self.notes += check_distinct(problems, [tuple(self.encode(problem)) for problem in problems], name)

    def _first(self) -> list[Problem]:
        """All training problems where they are few; else those of the first step, and as many as can be had soon."""
        if len(self.train) <= CHECKED:
            return [self.train[i] for i in range(len(self.train))]
        found, end = [self.train[i] for i in range(self.prompts_per_step)], time.monotonic() + LOOK
        for place in random.Random(0).sample(range(CHECKED), TRIED):
            if time.monotonic() > end:
                break
            found.append(self.train[place])
        return found

    def try_out(self) -> None:
        """Meet broken rewards, and answers that they cannot pay, now and not after the model has loaded.

        Raises:
            SettingError: what :func:`~oblr.rewards.tryout.try_out` refuses; or there is no problem to train on.
        """
        if all(problem.prompt in self.held_out_prompts for problem in self.first):  # none may be left
            next(self.next_problems())
            self.position = 0
        self.notes.append(self.reward_pool.words)
        self.notes += try_out(self.golds, self.first, "data.train")
        self.warned = any(not paid for _, paid in self.golds.known.values())  # the user has been told
        self.notes += try_out(self.golds, self.held_out, "data.held_out")
        self.held_out = self.golds.read(self.held_out)

    def setup(self, stage: str) -> None:
        self.reward_pool.ranks = self.run.num_devices
        self.reward_pool.start()

    def train_dataloader(self) -> "_OneBatch":
        return _OneBatch(self)

    def next_batch(self) -> RolloutBatch:
        self.restarted = 0
        problems = list(self.next_problems())
        rank, ranks = self.run.global_rank, self.run.world_size
        share = len(problems) // ranks
        mine = self._meant(problems[rank * share :][:share])

        def seeds(use: str) -> list[int]:
            return [derived_seed(use, self.seed, self.run.current_epoch, rank * share + q) for q in range(share)]

        rollouts, greedy_rewards = self.rollouts(mine, self.sampling, seeds("rollouts")), None
        if self.greedy:
            greedy = self.rollouts(mine, replace(self.sampling, n=1, temperature=0.0), seeds("greedy"))
            greedy_rewards = torch.tensor([rollout.reward for rollout in greedy])
        self.engine.sleep()
        return RolloutBatch(rollouts, self.sampling.n, self.weight_version, greedy_rewards)

    def next_problems(self) -> Iterator[Problem]:
        """The next N training problems that are not held out."""
        taken = skipped = 0
        while taken < self.prompts_per_step:
            problem = self.train[self.position]
            self.position += 1
            if problem.prompt not in self.held_out_prompts:
                taken, skipped = taken + 1, 0
                yield problem
            elif (skipped := skipped + 1) == min(len(self.train), PATIENCE):
                every = "every problem is" if skipped == len(self.train) else f"{skipped:,} problems in a row are"
                raise SettingError(
                    "data.train", f"{every} held out, as {problem.id}", "use other problems for training, or more kinds"
                )

    def _meant(self, problems: Sequence[Problem]) -> list[Problem]:
        """With answers as the reward can pay them; of those that it cannot, the first is a warning."""
        with self.clock.phase("reward"):
            read = self.golds.read(problems)
        unpaid = [problem for problem in problems if not self.golds.pays(problem)]
        self.unpaid = len(unpaid)
        if unpaid and not self.warned:
            self.warned = True
            first = unpaid[0]
            log.warning(f"no response to problem {first.id} can be right: its answer is {first.answer!r:.80}")
        return read

    def rollouts(self, problems: Sequence[Problem], sampling: Sampling, seeds: Sequence[int]) -> list[Rollout]:
        """Sample and score ``sampling.n`` responses of the policy to each problem; all ranks call it together.

        Responses are scored as they end, while the engine samples the others.

        Try ``j`` at problem ``q`` has the seed ``seeds[q] + j``.

        Raises:
            SyncTimeoutError: the engine did not get the policy's weights in time.
            EngineDiedError: the engine died more often than it may.
        """
        prompts, n = [self.encode(problem) for problem in problems], sampling.n

        def read(place: int, completion: Completion) -> tuple[Problem, str, Completion]:
            completion, text = stopped(self.tokenizer, completion, sampling)
            return problems[place // n], text, completion

        with self.reward_pool.scoring(read) as scoring:
            groups = self.generate(prompts, sampling, seeds, lambda q, j, one: scoring.add(q * n + j, one))
            with self.clock.phase("reward"):  # what is left of it
                scored = scoring.scored([completion for group in groups for completion in group])
        return [
            Rollout(problem, prompts[place // n], completion, text, verdict.reward, verdict.outcome, verdict.parts)
            for place, ((problem, text, completion), verdict) in enumerate(scored)
        ]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Completion]]:
        """Completions by an engine that has the policy's weights, and is restarted if it dies: nothing is lost.

        It starts when it is first asked: a policy that cannot be trained has ended the run by then. ``done`` is told of
        each as it ends, of some twice where an engine is restarted.
        """
        if not self.started:
            self.start_engine()
        dead = garbled = False
        while True:
            try:
                if dead:
                    self.start_engine()
                if self.engine.weight_version != self.weight_version:
                    self._sync()
                with self.clock.phase("rollout"):
                    return self._together(lambda: ask(self.engine, prompts, sampling, seeds, self.vocabulary, done))
            except EngineDiedError as death:
                garbled, before = isinstance(death, GarbledError), garbled
                if self.restarted == self.restarts or (garbled and before):  # twice is no accident
                    raise
                self.restarted, dead = self.restarted + 1, True
                log.warning(
                    f"step {self.run.current_epoch + 1} is repeated: the rollout engine died and is restarted "
                    f"({self.restarted} of rollout.restarts={self.restarts}): {death}"
                )

    def start_engine(self) -> None:
        with self.clock.phase("engine start"):
            self._together(self.engine.start)
        self.started = True

    def _sync(self) -> None:
        if self.weights is None:
            raise RuntimeError("connect the policy first: datamodule.weights = policy.weights")
        version = self.weight_version
        weights = NotedWeights(self.weights(), self.engine.dtype, self.seed, version)

        def refit() -> None:
            death: EngineDiedError | None = None
            try:
                self.engine.sync(weights, version)
            except EngineDiedError as error:
                death = error
            for _ in weights:  # gathering is collective: whose engine has not gone through all takes part in it, too
                pass
            if death is not None:
                raise death

        error = SyncTimeoutError(
            f"rollout.sync_timeout: step {self.run.current_epoch + 1}: the rollout engine did not get the policy's "
            f"weights within {self.sync_timeout:g} s (raise it if they need longer)"
        )
        with self.clock.phase("sync"), deadline(self.sync_timeout, error):
            self._together(refit)
            self._together(lambda: weights.compare(check_parts(weights.blocks, self.engine.read(weights.blocks))))

    def _together(self, action: Callable[[], T]) -> T:
        """What ``action`` gives this rank, as soon as all ranks are through with it.

        Raises:
            EngineDiedError, StaleEngineError: on all ranks where the engine of any has died, or is stale.
        """
        failure: RunError | None = None
        try:
            result = action()
        except FAILURES as error:
            failure = error
        own = max((n for n, kind in enumerate(FAILURES, 1) if isinstance(failure, kind)), default=0)
        worst = int(of_run().greatest(own))
        if worst == 0:
            return result
        raise FAILURES[worst - 1](max(of_run().objects((own, str(failure))))[1]) from failure

    @property
    def run(self) -> L.Trainer:
        if self.trainer is None:
            raise RuntimeError("rollouts are sampled in a run: give the data module to a Trainer first")
        return self.trainer

    @property
    def weight_version(self) -> int:
        """Of the policy: one more than the steps it has taken."""
        return self.run.current_epoch + 1

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

    def teardown(self, stage: str) -> None:
        self.engine.close()
        self.reward_pool.close()

    def on_exception(self, exception: BaseException) -> None:
        if isinstance(exception, SyncTimeoutError):
            end_process_after(WIND_UP, exception)
        self.engine.close()
        self.reward_pool.close()

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = state_dict["position"]


class _OneBatch:
    """An epoch: one batch, made when it is asked for."""

    def __init__(self, datamodule: RolloutDataModule):
        self.datamodule = datamodule

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[RolloutBatch]:
        yield self.datamodule.next_batch()
