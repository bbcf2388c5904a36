"""A few rollouts to read, at every so many steps."""

from typing import Annotated

from lightning import Trainer
from torch import Tensor

from callbacks.observer import Observer
from callbacks.rollouts import shares
from oblr.batch.types import StepStatistics
from oblr.kinds import Count, Ge, Le
from oblr.policy.step import PolicyModule
from oblr.record.shown import Rows, show
from oblr.run.plain import verbatim

#: Characters of a prompt or response that a table shows.
LONGEST = 2000


class SampleTable(Observer):
    """Writes a table of this rank's responses: prompt, response, reward, advantage, weight, share of the update.

    First those of the highest advantage, then those of the lowest, then those that make up most of the update.

    Args:
        every: steps between tables.
        rows: responses of each kind that are shown.
    """

    def __init__(self, every: Count = 10, rows: Annotated[int, Ge(1), Le(10_000)] = 3):
        self.every, self.rows = every, rows

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        if trainer.current_epoch % self.every == 0:
            show(trainer, "rollout/samples", sample_table(stats, shares(policy, stats), self.rows))


def sample_table(stats: StepStatistics, shares: Tensor, rows: int) -> Rows:
    """``rows`` responses of each kind; none of the largest shares of the update where these are not known.

    Args:
        shares: of all responses of the step, float64 [N, G], see :func:`callbacks.rollouts.shares`.
    """
    own = slice(stats.first, stats.first + stats.batch.n_groups)
    advantages, weights, shares = (of[own].flatten() for of in (stats.advantages, stats.reward_weights, shares))
    kinds = {"best": advantages, "worst": -advantages}
    if shares.isfinite().any():
        kinds["largest share"] = shares
    found = []
    for kind, values in kinds.items():
        for i in values.nan_to_num().argsort(descending=True, stable=True)[:rows].tolist():
            rollout = stats.batch.rollouts[i]
            figures = f"{rollout.reward:g}", f"{advantages[i]:+.3f}", f"{weights[i]:.3g}", f"{shares[i]:.1%}"
            found.append((kind, plain(rollout.problem.prompt), plain(rollout.text), *figures))
    return Rows(("", "prompt", "response", "reward", "advantage", "weight", "share of the update"), found)


def plain(text: str) -> str:
    """Without marks that turn its direction, and no longer than anybody reads."""
    return verbatim(text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)")
