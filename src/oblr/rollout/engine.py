"""What every rollout engine offers. Engines know token ids only: no text, no rewards, no policy."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor

from oblr.types import Completion, Sampling


class Engine(Protocol):
    """A behaviour policy that can be given new weights while it lives."""

    weight_version: int

    def start(self) -> None:
        """Load the model. Called once, before anything else; slow."""

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights in place by (checkpoint name, tensor) pairs and drop every cache of the old ones."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int) -> list[list[Completion]]:
        """``sampling.n`` completions of each prompt's token ids, the same ones whenever weights and ``seed`` are."""

    def close(self) -> None:
        """Release memory and processes. May be called twice."""
