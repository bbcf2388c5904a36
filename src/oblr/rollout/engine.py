"""What every rollout engine offers. Engines know token ids only: no text, no rewards, no policy."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from oblr.errors import SettingError, StaleEngineError
from oblr.types import Completion, Sampling, Seeds


class Engine(Protocol):
    """A behaviour policy that can be given new weights while it lives. All ranks of a run call the same methods.

    Attributes:
        weight_version: of the last sync; None while the engine is stale, which is from `start` or `sleep` to `sync`.
    """

    weight_version: int | None

    def start(self) -> None:
        """Load the model, or load it again after the engine has died; slow. Leaves the engine stale.

        Raises:
            EngineDiedError: it does not start.
        """

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights in place by (checkpoint name, tensor) pairs and drop every cache of the old ones.

        Goes through all of ``weights`` on every rank, since gathering them is collective, and holds one bounded part
        of them at a time.

        Raises:
            EngineDiedError: it died; the engine is stale.
        """

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: Seeds) -> list[list[Completion]]:
        """``sampling.n`` completions of each prompt's token ids, the same ones whenever weights and ``seed`` are.

        With a seed for each prompt the other prompts, their order and ``sampling.n`` do not matter, except that a batch
        of another shape rounds otherwise, which now and then tips the choice of a token.

        Raises:
            StaleEngineError: the engine has had no weights since `start` or `sleep`.
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


def check_fresh(engine: Engine) -> None:
    """Refuse to generate with weights that nobody has synced."""
    if engine.weight_version is None:
        raise StaleEngineError("the rollout engine is stale: it has had no weights since it was started or slept")
