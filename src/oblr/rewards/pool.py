"""Rewards in processes of their own, where they can neither hang the run nor take its memory."""

import hashlib
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe

from oblr.errors import RunError, SettingError
from oblr.problem import Completion, Problem, Sealed
from oblr.rewards.base import Reward
from oblr.rewards.workers import Order, Outcome, Result

log = logging.getLogger(__name__)
KEEPER = "from oblr.rewards.workers import main; main()"
#: Verdicts that are remembered.
REMEMBERED = 65_536


@dataclass(frozen=True)
class Verdict:
    """The reward of a response, and its parts where it names them; 0 where it took too long or failed.

    ``problem`` is what went wrong, "" where nothing did.
    """

    reward: float
    outcome: Outcome
    parts: dict[str, float] = field(default_factory=dict)
    problem: str = field(default="", compare=False)


class RewardPool:
    """Scores responses in worker processes, each response within a time limit and a memory limit.

    A worker that exceeds the time is killed and replaced, as is one that dies; the response gets 0 and is counted. Of
    each kind of failure the first is a warning. A response is seen whole, however long it is. Rewards that have a
    ``key(problem, text, completion)`` say by it what their verdict depends on: responses that share it are scored once,
    and the last ``REMEMBERED`` verdicts are kept.

    Works from any thread, next to any engine: the workers come from a process that is started, not forked, and use no
    signals. They start with the first call, or with :meth:`start`, which does not wait for them.

    Args:
        reward: must be picklable.
        workers: processes.
        timeout: seconds per response.
        memory_gib: what a worker may take beyond what the reward takes when it is loaded.

    Attributes:
        timeouts, errors: responses so far that took too long, or whose scoring failed.

    Raises:
        SettingError: a limit that cannot be kept, or a reward that cannot be sent to another process.
    """

    def __init__(self, reward: Reward, workers: int = 2, timeout: float = 5.0, memory_gib: float = 1.0):
        for setting, value in (("workers", workers), ("timeout", timeout), ("memory_gib", memory_gib)):
            if value <= 0:
                raise SettingError(f"rollout.reward_pool.{setting}", f"{value} is not enough", "use a positive number")
        try:
            pickled = pickle.dumps(reward)
        except Exception as error:
            raise _unsendable(repr(error)) from error
        self.order = Order(pickled, workers, timeout, int(memory_gib * 2**30))
        self.key = getattr(reward, "key", None)
        self.timeouts = self.errors = 0
        self.cache: OrderedDict[Hashable, Verdict] = OrderedDict()
        self.lock, self.warned = threading.Lock(), set[str]()
        self.process: subprocess.Popen[bytes] | None = None
        self.loaded = False

    def start(self) -> None:
        """Start the processes, without waiting for them."""
        if self.process is not None:
            return
        self.connection, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", KEEPER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the run
        )
        theirs.close()
        self.loaded = False
        self.connection.send(self.order)

    def score(
        self, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
    ) -> list[Verdict]:
        """A verdict per response, in order; failures are counted.

        Raises:
            SettingError: the reward cannot be loaded in another process.
            RunError: the processes end as soon as they are started.
        """
        with self.lock:
            verdicts = self._verdicts(problems, texts, completions)
            self.timeouts += sum(verdict.outcome == "timeout" for verdict in verdicts)
            self.errors += sum(verdict.outcome == "error" for verdict in verdicts)
            for problem, verdict in zip(problems, verdicts, strict=True):
                self._warn(problem, verdict)
        return verdicts

    def probe(
        self, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
    ) -> list[Verdict]:
        """As :meth:`score`, of responses that no policy has given: their failures are the caller's to tell."""
        with self.lock:
            return self._verdicts(problems, texts, completions)

    def _verdicts(
        self, problems: Sequence[Problem], texts: Sequence[str], completions: Sequence[Completion]
    ) -> list[Verdict]:
        responses = list(zip(problems, texts, completions, strict=True))
        keys: list[Hashable] = [
            _digest(self.key(*response)) if self.key and not isinstance(response[0], Sealed) else place
            for place, response in enumerate(responses)
        ]
        known = {key: self.cache[key] for key in keys if key in self.cache} if self.key else {}
        new = {key: response for key, response in zip(keys, responses, strict=True) if key not in known}
        results = self._score([pickle.dumps(response) for response in new.values()]) if new else []
        for key, result in zip(new, results, strict=True):
            known[key] = Verdict(result.score.value, result.outcome, result.score.parts, result.problem)
        verdicts = [known[key] for key in keys]
        if self.key:
            self._remember(known)
        return verdicts

    def _score(self, responses: list[bytes]) -> list[Result]:
        for _ in range(2):  # one death from outside is forgiven
            try:
                self.start()
                if not self.loaded:
                    if (problem := self.connection.recv()) is not None:
                        raise _unsendable(problem)
                    self.loaded = True
                self.connection.send(responses)
                return self.connection.recv()
            except (EOFError, OSError):
                self.close()
        raise RunError("the processes that score rewards ended (is the machine out of memory?)")

    def _remember(self, verdicts: dict[Hashable, Verdict]) -> None:
        """The last ones that did not depend on the machine's load."""
        for key, verdict in verdicts.items():
            if verdict.outcome == "scored" and isinstance(key, bytes):
                self.cache[key] = verdict
                self.cache.move_to_end(key)
        while len(self.cache) > REMEMBERED:
            self.cache.popitem(last=False)

    def _warn(self, problem: Problem, verdict: Verdict) -> None:
        kind = verdict.problem.partition("(")[0]  # an exception without its arguments
        if kind and kind not in self.warned:
            self.warned.add(kind)
            scored = "" if verdict.outcome == "scored" else f"is scored 0 ({verdict.outcome})"
            log.warning(f"a response to problem {problem.id} {scored or 'has its reward, but'}: {verdict.problem}")

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        if self.process is not None:
            self.connection.close()
            self.process.wait()
            self.process = None


def _digest(key: Hashable) -> bytes:
    """Keys hold answers, and those can be long."""
    return hashlib.blake2b(repr(key).encode(errors="backslashreplace"), digest_size=16).digest()


def _unsendable(error: str) -> SettingError:
    return SettingError(
        "reward",
        f"the processes that score cannot load it: {error}",
        "define it at the top of a module that can be imported, with attributes that can be pickled",
    )
