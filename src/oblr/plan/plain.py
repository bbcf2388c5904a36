"""The update that others are measured by: autograd's own forward and backward, and nothing else."""

from typing import Any, cast

import torch

from oblr.gradnorm.precision import no_autocast
from oblr.policy.step import PolicyModule
from oblr.types import RolloutBatch, TokenScores


class PlainPolicy(PolicyModule):
    """Adds ``∇θ Σ_t log π_t`` to ``.grad``, micro-batch by micro-batch, and steps; no norm, baseline or moment."""

    def update(self, batch: RolloutBatch, *unused: Any, **settings: Any) -> None:  # type: ignore[override]
        for _groups, parts in self.micro_batches(batch, torch.ones(batch.n_groups, dtype=torch.bool)):
            for packed in parts:
                total = cast(TokenScores, self.scorer(packed)).logprobs.sum()
                with no_autocast(total):
                    total.backward()
        self.optimizers().step()  # type: ignore[union-attr]
