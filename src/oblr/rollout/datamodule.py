"""The data of an RL run: each epoch, new weights go into the engine and one batch of scored rollouts comes out."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

from transformers import PreTrainedTokenizerBase

from oblr.batch.types import Rollout, RolloutBatch, Sampling
from oblr.data.distinct import check_distinct
from oblr.data.ends import check_stop
from oblr.errors import EngineDiedError, SettingError
from oblr.kinds import Count, Few, Given, Natural, Part, Positive, Seed, Temperature, Word, checked
from oblr.problem import Problem
from oblr.rewards.base import Reward
from oblr.rewards.pool import RewardPool
from oblr.rewards.tryout import try_out
from oblr.rollout.ahead import Groups, Told, UnderWay, Upcoming
from oblr.rollout.drawing import Drawing, Drawn, ProblemSource, Progress
from oblr.rollout.engine import Done, Engine, choose
from oblr.rollout.recording import Question, Recording
from oblr.rollout.refill import Others, others
from oblr.rollout.replies import ask
from oblr.rollout.scored import ScoredEngine
from oblr.rollout.versions import mean_age
from oblr.run.randomness import derived_seed
from oblr.run.timing import Stopwatch

log = logging.getLogger(__name__)
#: Responses of a rank, and tokens of each, by which new weights are tried out where the batch is of older ones. Nothing
#: else goes on meanwhile, and the engine takes as long for many responses as for one.
PROBES, PROBE_TOKENS = 32, 8


@checked("rollout")
class RolloutDataModule(ScoredEngine):
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
        ahead: steps whose rollouts are under way while the policy trains: they are of weights so many steps old.
        in_flight: whether new weights come into the midst of these, whose later tokens are then of them.
        refill: times that prompts whose responses' rewards agree are replaced by others, in a step (DAPO's dynamic
            sampling, arXiv 2503.14476).
        reward_pool: makes of the reward the processes that score.
        recording: keeps what the engine has answered, or has it kept; None: neither.
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
        ahead: Natural = 0,
        in_flight: bool = False,
        refill: Natural = 0,
        reward_pool: Callable[[Reward], RewardPool] = RewardPool,
        recording: Annotated[Recording | None, Part("oblr.rollout", optional=True)] = None,
        vocabulary: Given[int | None] = None,
    ):
        super().__init__(
            *(choose(engine, engines), restarts, sync_timeout, seed, vocabulary),
            Sampling(group_size, temperature, max_new_tokens, tuple(end_ids), stop=tuple(stop)),
            *(tokenizer, max_model_len, reward, reward_pool, recording),
        )
        check_stop("rollout.stop", stop, tokenizer)
        replayed = recording is not None and recording.replay  # the engine is not asked then
        if ahead and not (self.engine.apart or replayed):
            raise SettingError(
                "rollout.ahead",
                f"{ahead} needs an engine that samples while the policy trains, and {engine} computes in its process",
                "use rollout.engine=server, or rollout.ahead=0",
            )
        if in_flight and not ahead:
            raise SettingError(
                "rollout.in_flight",
                "nothing is under way when weights are replaced",
                "use rollout.ahead=1 or more, or rollout.in_flight=false",
            )
        if in_flight and refill:
            raise SettingError(
                "rollout.refill",
                "rewards score a batch at a time, so what fills its places would wait for all that is under way",
                "use rollout.in_flight=false, or rollout.refill=0",
            )
        self.ahead, self.in_flight, self.refill = ahead, in_flight, refill
        self.of_several = in_flight or replayed or (ahead > 0 and refill > 0)  # versions, in a batch
        self.upcoming = Upcoming(ahead + 1 if in_flight else 1)
        if in_flight:
            self.engine.in_flight = True
        self.train = train
        self.held_out = [held_out[i] for i in range(len(held_out))]
        self.drawing = Drawing(train, {problem.prompt for problem in self.held_out}, prompts_per_step)
        self.notes = [note for source in (train, held_out) for note in getattr(source, "notes", ())]
        self.progress = self.before = Progress()  # in the training problems; and when the last batch was asked for
        self.again: Callable[[], bool] = lambda: False  # whether the problems of that batch are to be sampled anew
        self.first = self.drawing.first()
        for name, problems in (("data.train", self.first), ("data.held_out", self.held_out)):
            self.notes += check_distinct(problems, [tuple(self.encode(problem)) for problem in problems], name)

    def try_out(self) -> None:
        """Meet broken rewards, and answers that they cannot pay, now and not after the model has loaded.

        Raises:
            SettingError: what :func:`~oblr.rewards.tryout.try_out` refuses; or there is no problem to train on.
        """
        if all(problem.prompt in self.drawing.held_out for problem in self.first):  # none may be left
            next(self.drawing.problems(0))
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
        """The batch of the step that comes next; those of ``ahead`` steps after it are under way."""
        self.restarted = 0
        if self.again():
            self.upcoming.drop(lambda: None)
            self.progress = self.before
        self.before = self.progress
        if self.in_flight and self.upcoming:
            self._refresh()
        batch, refills = self._due()
        if batch is None:
            batch = self._sample(self._draw(self.run.current_epoch))
        while refills < self.refill and (found := self._others(batch)):
            batch, refills = batch.refilled_with(self._sample(found.drawn), found.places, found.replaced), refills + 1
        if self.refill:
            batch = replace(batch, refilled=batch.refilled or 0)
        if batch.age and self.of_several:
            batch = replace(batch, token_age=mean_age(batch, self.weight_version))
        scored = self._scored_ahead()
        if batch.age or (self.ahead and self.engine.weight_version != self.weight_version):
            batch = replace(batch, probe=self._probe(batch))
        if self.ahead:
            self._refill_ahead(scored)
            self._go_ahead()
        if self.started and not (self.ahead and self.engine.apart):
            self.engine.sleep()
        return batch

    def _sample(self, drawn: Drawn) -> RolloutBatch:
        """A batch of the policy as it is."""
        questions = self.questions(drawn)
        version, asks = self.asks(drawn, questions, lambda question, done: self.generate(*question, done))
        batch = self.batch_of(drawn, version, questions, asks, self.clock)
        self.progress = self.progress.after(drawn)
        return batch

    def _refresh(self) -> None:
        """Have what is under way go on with the newest weights, and begin the next batch beside that which is due."""
        try:
            self._renew()
            self._go_ahead(due=1)
        except EngineDiedError as death:
            self._lose(death)

    def _due(self) -> tuple[RolloutBatch | None, int]:
        """The first batch under way, and how often groups of it were replaced.

        None where there is none, or where all are lost with the engine.
        """
        batch = self._result(self.upcoming.batches[0]) if self.upcoming else None
        if batch is None:
            return None, 0
        due = self.upcoming.batches.popleft()
        for part in due.parts:
            self.progress = self.progress.after(part.drawn)
        return batch, len(due.refills)

    def _result(self, under_way: UnderWay) -> RolloutBatch | None:
        """The scored batch of ``under_way``, when all ranks have theirs; None where all is lost with the engine."""
        try:
            with self.clock.phase("rollout"):
                return self._together(lambda: under_way.result(self.weight_version))
        except EngineDiedError as death:
            self._lose(death)
            return None

    def _lose(self, death: EngineDiedError) -> None:
        """Give up what is under way with an engine that has died, and restart it."""
        if not self.in_flight:
            self.upcoming.drop(self.reward_pool.give_up)
        self.garbled = self._revive(death)

    def _revive(self, death: EngineDiedError, garbled: bool = False) -> bool:
        """See :class:`LiveEngine`. What is under way while it gets new weights is lost with it."""
        if self.in_flight:
            self.upcoming.drop(self._give_up)
        return super()._revive(death, garbled)

    def _probe(self, batch: RolloutBatch) -> list[Rollout]:
        """Some tokens of the newest weights, which the engine gets for that."""
        own = [batch.group(q)[0] for q in range(min(batch.n_groups, PROBES))]
        longest = min(self.sampling.max_new_tokens, PROBE_TOKENS)
        sampling = replace(self.sampling, n=PROBES // len(own), max_new_tokens=longest)
        of_step = ("probe", self.seed, self.run.current_epoch, self.run.global_rank)
        seeds = [derived_seed(*of_step, q) for q in range(len(own))]
        groups = self.generate([one.prompt_ids for one in own], sampling, seeds)
        return [
            replace(one, completion=completion, text="")
            for one, group in zip(own, groups, strict=True)
            for completion in group
        ]

    def _scored_ahead(self) -> list[tuple[UnderWay, RolloutBatch]]:
        """Batches under way whose groups that agree are replaced now, so that few are left when a batch is due.

        That is once a step, as late as is in time: their rewards are waited for. None where all are lost with the
        engine.
        """
        scored = []
        for steps, one in enumerate(list(self.upcoming.batches), 1):
            if len(one.refills) <= self.refill - steps:
                if (batch := self._result(one)) is None:
                    return []
                scored.append((one, batch))
        return scored

    def _refill_ahead(self, scored: Sequence[tuple[UnderWay, RolloutBatch]]) -> None:
        for one, batch in scored:
            if found := self._others(batch, one.drawn.step):
                one.refills.append((found, self._start(found.drawn)))

    def _go_ahead(self, due: int = 0) -> None:
        """Start what is to be under way, with the weights that the engine has, which are the policy's.

        Args:
            due: batches under way that this step takes.
        """
        last = self.run.max_epochs
        while len(self.upcoming) < self.ahead + due:
            step = self.run.current_epoch + 1 - due + len(self.upcoming)
            if last is not None and 0 <= last <= step:
                break
            self.upcoming.batches.append(self._start(self._draw(step)))

    def _start(self, drawn: Drawn) -> UnderWay:
        questions, clock = self.questions(drawn), Stopwatch()  # the run's is the main thread's

        def answered(question: Question, done: Done) -> Groups:
            return ask(self.engine, *question, self.vocabulary, done)

        version, asks = self.asks(drawn, questions, answered)

        def made(told: Mapping[str, Told]) -> RolloutBatch:
            batch = self.batch_of(drawn, version, questions, {use: one.heard for use, one in told.items()}, clock)
            return replace(batch, beside={"rollout": sum(one.seconds for one in told.values()), **clock.reset()})

        return self.upcoming.start(drawn, asks, made)

    def _draw(self, step: int) -> Drawn:
        """This rank's share of the problems that come next."""
        return self.drawing.of_step(step, self._next, self.run.global_rank, self.run.world_size, self.progress)

    def _others(self, batch: RolloutBatch, step: int | None = None) -> Others | None:
        """Problems in place of those whose groups agree, in the batch of a step, by default of the one that is due."""
        step = self.run.current_epoch if step is None else step

        def draw(counts: Sequence[int], replaced: int) -> Drawn:
            before = self.drawing.count + replaced
            return self.drawing.shared(step, self._next, counts, self.run.global_rank, before, self.progress)

        return others(batch, draw)

    @property
    def _next(self) -> int:
        """Position of the training problem to be drawn next."""
        return max(self.progress.position, self.upcoming.end)

    def rollouts(self, problems: Sequence[Problem], sampling: Sampling, seeds: Sequence[int]) -> list[Rollout]:
        """Sample and score ``sampling.n`` responses of the policy to each problem; all ranks call it together.

        Try ``j`` at problem ``q`` has the seed ``seeds[q] + j``.

        Raises:
            SyncTimeoutError: the engine did not get the policy's weights in time.
            EngineDiedError: the engine died more often than it may.
        """
        with self.clock.phase("rollout"):
            self.upcoming.finish()
        question = Question([self.encode(problem) for problem in problems], sampling, seeds)
        return self.scored(problems, question, partial(self.generate, *question), self.clock)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> Groups:
        """Completions of the policy as it is, see :class:`LiveEngine`, once all that is under way is sampled.

        With ``in_flight``, beside it.
        """
        if not self.in_flight:
            with self.clock.phase("rollout"):
                self.upcoming.settle()
        return super().generate(prompts, sampling, seeds, done)

    def teardown(self, stage: str) -> None:
        self._end()

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        self._end()

    def _end(self) -> None:
        self.engine.close()
        self.upcoming.drop(self._give_up)
        self.reward_pool.close()

    def _give_up(self) -> None:
        """Whatever is sampled or scored."""
        self.engine.close()
        self.reward_pool.give_up()

    def state_dict(self) -> dict[str, Any]:
        state = asdict(self.before if self.again() else self.progress)
        return state | ({"recording": self.recording.run} if self.recording and self.recording.write else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        beyond = state_dict.get("beyond", ())  # which checkpoints of earlier versions lack
        self.progress = Progress(state_dict["position"], tuple((begin, end) for begin, end in beyond))
        if self.recording is not None:
            self.recording.run = state_dict.get("recording", "")


class _OneBatch:
    """An epoch: one batch, made when it is asked for."""

    def __init__(self, datamodule: RolloutDataModule):
        self.datamodule = datamodule

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[RolloutBatch]:
        yield self.datamodule.next_batch()
