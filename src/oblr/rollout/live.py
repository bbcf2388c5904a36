"""A data module whose engine has the policy's weights: it is synced before it is asked, and restarted where it dies."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import lightning as L
from torch import Tensor

from oblr.batch.types import Sampling
from oblr.errors import EngineDiedError, GarbledError, RunError, StaleEngineError, SyncTimeoutError
from oblr.rollout.ahead import Groups
from oblr.rollout.deadline import deadline, end_process_after
from oblr.rollout.engine import Done, Engine
from oblr.rollout.readback import NotedWeights
from oblr.rollout.replies import ask, check_parts
from oblr.rollout.versions import check_versions
from oblr.run.ranks import of_run
from oblr.run.timing import Stopwatch

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds that a run has to wind up after a sync that timed out: whatever hung may still hang.
WIND_UP = 30.0
#: What may happen to the engine of a rank: the last of these that happens to any of them happens to all.
FAILURES = (EngineDiedError, GarbledError, StaleEngineError)


class LiveEngine(L.LightningDataModule):
    """Samples from the policy of the step that comes next; all ranks call its methods together.

    Args:
        engine: what samples.
        restarts: how often in one step an engine that dies is restarted.
        sync_timeout: longest that new weights may take from the policy to the engine, seconds.
        seed: of what is read back of the weights.
        vocabulary: how many tokens the policy has an embedding of; None: as many as completions have.

    Attributes:
        weights: gives the policy's, by (checkpoint name, tensor).
        clock: of the run.
        restarted: how often the engine has been in this step.
    """

    def __init__(self, engine: Engine, restarts: int, sync_timeout: float, seed: int, vocabulary: int | None):
        super().__init__()
        self.engine, self.restarts, self.sync_timeout = engine, restarts, sync_timeout
        self.seed, self.vocabulary = seed, vocabulary
        self.started = False  # whether the engine has been, once
        self.garbled = False  # whether it was, where what was under way is asked for again
        self.restarted = 0
        self.clock = Stopwatch()
        self.weights: Callable[[], Iterable[tuple[str, Tensor]]] | None = None

    @property
    def run(self) -> L.Trainer:
        if self.trainer is None:
            raise RuntimeError("rollouts are sampled in a run: give the data module to a Trainer first")
        return self.trainer

    @property
    def weight_version(self) -> int:
        """Version of the policy's weights: one more than the steps it has taken."""
        return self.run.current_epoch + 1

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> Groups:
        """Completions by an engine that has the policy's weights, and is restarted if it dies: nothing is lost.

        It starts when it is first asked: a policy that cannot be trained has ended the run by then. ``done`` is told of
        each as it ends, of some twice where an engine is restarted.
        """
        if not self.started:
            self.start_engine()
        garbled, self.garbled = self.garbled, False

        def asked() -> Groups:
            groups = ask(self.engine, prompts, sampling, seeds, self.vocabulary, done)
            check_versions(groups, self.weight_version, self.weight_version)
            return groups

        while True:
            try:
                self._renew()
                with self.clock.phase("rollout"):
                    return self._together(asked)
            except EngineDiedError as death:
                garbled = self._revive(death, garbled)

    def _revive(self, death: EngineDiedError, garbled: bool = False) -> bool:
        """Restart the engine as often as it may be; returns whether it had died of a garbled answer.

        Args:
            garbled: whether it had the time before.

        Raises:
            EngineDiedError: it has been restarted too often in this step, or was garbled twice, which is no accident.
        """
        while True:
            before, garbled = garbled, isinstance(death, GarbledError)
            if self.restarted == self.restarts or (garbled and before):
                raise death
            self.restarted += 1
            log.warning(
                f"step {self.run.current_epoch + 1} is repeated: the rollout engine died and is restarted "
                f"({self.restarted} of rollout.restarts={self.restarts}): {death}"
            )
            try:
                self.start_engine()
                return garbled
            except EngineDiedError as error:
                death = error

    def start_engine(self) -> None:
        with self.clock.phase("engine start"):
            self._together(self.engine.start)
        self.started = True

    def _renew(self) -> None:
        """Give the engine the policy's weights, if it has older ones."""
        if self.engine.weight_version != self.weight_version:
            self._sync()

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
        """Do ``action`` on this rank, and give what comes of it when all ranks are through with theirs.

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

    def on_exception(self, exception: BaseException) -> None:
        if isinstance(exception, SyncTimeoutError):
            end_process_after(WIND_UP, exception)
