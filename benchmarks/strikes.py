"""Callbacks that break something at a chosen moment of a run: ``+callbacks.strike={_target_: strikes.Kill, …}``."""

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer

from oblr.rewards.lockdown import descendants
from oblr.run import checkpoint

PHASES = ("rollout", "norm pass", "update", "checkpoint")


class Phases(Callback):
    """Follows the phases of one rank's steps, and writes the seconds of every visit to ``journal``.

    A rollout is the engine's generation; the norm pass lasts until the weights are known, the update from there until
    the step has been taken, and the checkpoint while it is written.
    """

    def __init__(self, journal: str, rank: int = 0):
        self.journal, self.rank = Path(journal), rank
        self.phase, self.since = "", 0.0
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_rank != self.rank:
            return
        policy: Any = pl_module
        self.trainer, self.engine = trainer, trainer.datamodule.engine  # type: ignore[attr-defined]
        self.engine.generate = self.during("rollout", self.engine.generate)
        self.pool = trainer.datamodule.reward_pool  # type: ignore[attr-defined]
        checkpoint.save = self.during("checkpoint", checkpoint.save)
        policy.measure = self.around(policy.measure)

    def during(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.enter(phase)
            result = function(*args, **kwargs)
            self.enter("")
            return result

        return call

    def around(self, measure: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def call(*args: Any) -> Iterator[Any]:
            with ExitStack() as stack:
                self.enter("norm pass")
                measured = stack.enter_context(measure(*args))
                self.enter("update")
                yield measured

        return call

    def on_train_batch_end(self, *args: Any) -> None:
        self.enter("")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_rank == self.rank:
            self.journal.write_text(json.dumps(self.seconds))

    def enter(self, phase: str) -> None:
        now = time.perf_counter()
        if self.phase:
            self.seconds[self.phase].append(now - self.since)
        self.phase, self.since = phase, now


class Strike(Phases):
    """Something happens when a phase begins, in step ``step`` (counted from 1) or later; ``journal`` has which."""

    def __init__(self, phase: str, step: int, journal: str, rank: int = 0):
        super().__init__(journal, rank)
        self.target, self.step, self.struck = phase, step, False

    def enter(self, phase: str) -> None:
        super().enter(phase)
        if phase == self.target and self.trainer.current_epoch + 1 >= self.step and not self.struck:
            self.strike()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The journal has been written."""

    def strike(self) -> None:
        self.struck = True
        self.journal.write_text(json.dumps({"phase": self.phase, "step": self.trainer.current_epoch + 1}))


class Kill(Strike):
    """SIGKILL, so many seconds into the phase, or when it ends where that is sooner."""

    def __init__(self, phase: str, step: int, journal: str, seconds: float, rank: int = 0):
        super().__init__(phase, step, journal, rank)
        self.delay, self.timer = seconds, threading.Timer(0, self.kill)

    def enter(self, phase: str) -> None:
        if self.timer.is_alive() and not self.struck:
            self.timer.cancel()
            self.phase_ends()
        super().enter(phase)

    def phase_ends(self) -> None:
        self.kill()

    def strike(self) -> None:
        self.timer = threading.Timer(self.delay, self.kill)
        self.timer.start()

    def kill(self) -> None:
        victim = self.victim()  # where there is none, nothing is said to have been struck
        super().strike()
        os.kill(victim, signal.SIGKILL)

    def victim(self) -> int:
        return os.getpid()


class KillServer(Kill):
    """SIGKILL to the process of the run's own vLLM server that has ``process`` in its command line.

    A rollout that is over sooner has all that it asked for: the next one is struck.
    """

    def __init__(self, phase: str, step: int, journal: str, seconds: float, process: str):
        super().__init__(phase, step, journal, seconds)
        self.process = process

    def phase_ends(self) -> None:
        """Nothing happens."""

    def victim(self) -> int:
        return of_server(self.engine, self.process)


class KillServerAndClock(KillServer):
    """The same, with the clock set back an hour then."""

    def kill(self) -> None:
        super().kill()
        set_back(Path(self.trainer.default_root_dir))


class KillReward(Kill):
    """SIGKILL to one of the processes that score, with the clock set back an hour then."""

    def __init__(self, phase: str, step: int, journal: str, seconds: float, place: int):
        super().__init__(phase, step, journal, seconds)
        self.place = place

    def kill(self) -> None:
        super().kill()
        set_back(Path(self.trainer.default_root_dir))

    def victim(self) -> int:
        return that_scores(self.pool, self.place, random.Random(self.delay))


class KillMeanwhile(Strike):
    """SIGKILL so many seconds after a step has begun, whatever is going on by then: with ``rollout.ahead`` much is.

    ``process`` is "trainer", "reward process", or what a process of the run's own vLLM server has in its command line.
    """

    def __init__(self, step: int, journal: str, seconds: float, process: str):
        super().__init__("", step, journal)
        self.timer, self.process = threading.Timer(seconds, self.kill), process
        self.timer.daemon = True

    def on_train_batch_start(self, *args: Any) -> None:
        if self.trainer.current_epoch + 1 == self.step:
            self.timer.start()

    def kill(self) -> None:
        match self.process:
            case "trainer":
                victim = os.getpid()
            case "reward process":
                victim = that_scores(self.pool, 1, random.Random(self.step))
            case _:
                victim = of_server(self.engine, self.process)
        self.strike()
        os.kill(victim, signal.SIGKILL)


def of_server(engine: Any, process: str) -> int:
    """The process of the run's own vLLM server that has ``process`` in its command line."""
    find = ["pgrep", "-g", str(engine.process.process.pid), "-f", process]
    return int(subprocess.run(find, capture_output=True, text=True, check=True).stdout.split()[-1])


def that_scores(pool: Any, place: int, rng: random.Random) -> int:
    """A process that scores: ``place`` 0 is one that the run has started, 1 and more are below it."""
    first = rng.choice(pool.slots).process.pid
    pids = [first, *descendants(first)]
    return pids[min(place, len(pids) - 1)]


def set_back(folder: Path, hours: float = 1) -> None:
    """As a clock that is set back leaves a folder: all that is there has been written later than now."""
    for path in [folder, *folder.rglob("*")]:
        with suppress(FileNotFoundError):  # the run goes on
            found = path.stat()
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + int(hours * 3600e9)))


class Command(Strike):
    """A shell command runs; where it fails, so does the rank."""

    def __init__(self, phase: str, step: int, journal: str, command: str, rank: int = 0):
        super().__init__(phase, step, journal, rank)
        self.command = command

    def strike(self) -> None:
        super().strike()
        subprocess.run(self.command, shell=True, check=True)


class Wait(Strike):
    """The rank waits, as for one that is no longer there."""

    def strike(self) -> None:
        super().strike()
        time.sleep(600)


class Corrupt(Strike):
    """The transformers engine loses one of its weights."""

    def strike(self) -> None:
        super().strike()
        next(self.engine.model.parameters()).zero_()


class Hang(Strike):
    """From now on no weights reach the engine."""

    def strike(self) -> None:
        super().strike()
        self.engine.sync = lambda weights, version: time.sleep(1000)
