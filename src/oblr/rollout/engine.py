"""What every rollout engine offers. Engines know token ids only: no text, no rewards, no policy."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor

from oblr.batch.types import Sampling
from oblr.errors import SettingError, StaleEngineError
from oblr.problem import Completion
from oblr.rollout.readback import Block, Part

#: Told of a response as soon as it has ended, from whatever thread: its prompt's place, its try's number, and itself.
Done: TypeAlias = Callable[[int, int, Completion], object]


class Engine(Protocol):
    """A behaviour policy that can be given new weights while it lives. All ranks of a run call the same methods.

    Attributes:
        weight_version: of the last sync; None while the engine is stale, which is from `start` or `sleep` to `sync`.
        apart: whether it computes in other processes: then it may `generate` in another thread, and `sleep` is nothing.
        in_flight: whether `sync` may come while it generates, which is said before it starts, and to one that is apart:
            what it samples then goes on with the new weights, and completions have ``versions``.
    """

    weight_version: int | None
    apart: bool
    in_flight: bool

    @property
    def dtype(self) -> str:
        """Of its weights: "float32" or "bfloat16"."""

    def start(self) -> None:
        """Load the model, or load it again after the engine has died; slow. Leaves the engine stale.

        Raises:
            EngineDiedError: it does not start.
            RunError: it cannot be started again in this process.
        """

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights in place by (checkpoint name, tensor) pairs and drop every cache of the old ones.

        Goes through ``weights`` once, and holds one bounded part of them at a time. What an engine leaves of them, its
        caller goes through: gathering them is collective.

        Raises:
            EngineDiedError: it died; the engine is stale, and what it was asked for ends with it.
        """

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Completion]]:
        """``sampling.n`` completions of each prompt's token ids; try ``j`` at prompt ``q`` has seed ``seeds[q] + j``.

        ``done`` is told of each, once, as soon as the engine has it; of an engine that dies, of some.
        The other prompts, their order and ``sampling.n`` do not matter, except that a batch of another shape rounds
        otherwise, which now and then tips the choice of a token. No generator of this process is drawn from or seeded.

        Raises:
            StaleEngineError: the engine has had no weights since `start` or `sleep`.
            EngineDiedError: it died.
        """

    def read(self, blocks: Sequence[Block]) -> list[list[Part]]:
        """What the engine computes with: process by process, its parts of all blocks, in the engine's dtype.

        Raises:
            StaleEngineError: a weight cannot be read.
            EngineDiedError: it died.
        """

    def sleep(self) -> None:
        """Give back what memory the engine can do without until the next `sync`."""

    def close(self) -> None:
        """Release memory and processes. May be called twice."""


def choose(engine: str, engines: Mapping[str, Callable[[], Engine]]) -> Engine:
    """The engine of that name; the others are not even constructed."""
    if engine not in engines:
        raise SettingError("rollout.engine", f"{engine!r} is unknown", f"use one of {sorted(engines)}")
    return engines[engine]()


def precise(dtype: str) -> dict[str, str]:
    """Variables of the environment with which vLLM's kernels compute in ``dtype``.

    Triton, which attention of float32 is written in, rounds its factors to TF32 unless it is told.
    """
    return {"TRITON_F32_DEFAULT": "ieee"} if dtype == "float32" else {}


def check_fresh(engine: Engine) -> None:
    """Refuse to generate with weights that nobody has synced."""
    if engine.weight_version is None:
        raise StaleEngineError("the rollout engine is stale: it has had no weights since it was started or slept")


def whole_prompts(max_num_batched_tokens: int | None, max_model_len: int, gpu: bool) -> int | None:
    """Most tokens of vLLM's forward pass, of as many as were asked for.

    Of a part of a prompt vLLM drops the token that it has drawn, and takes the random numbers back, which generators
    of CPUs cannot (0.32: "CPU Generator does not use offset"). Without GPU a prompt is computed in one pass.
    """
    return (
        max_num_batched_tokens if gpu or max_num_batched_tokens is None else max(max_num_batched_tokens, max_model_len)
    )


def check_limits(engine: str, max_num_batched_tokens: int | None, max_num_seqs: int | None) -> None:
    """Raises SettingError where vLLM could not start with these limits."""
    if max_num_batched_tokens is not None and max_num_seqs is not None and max_num_batched_tokens < max_num_seqs:
        raise SettingError(
            f"rollout.engines.{engine}.max_num_batched_tokens",
            f"{max_num_batched_tokens} are not enough for a token of each of max_num_seqs={max_num_seqs} sequences",
            "raise it, or lower the other",
        )
