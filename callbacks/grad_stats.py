"""Per-sample gradient norms, for every baseline alike."""

import torch
from lightning import Trainer
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef

from callbacks.observer import Observer
from oblr.baselines.base import live_groups
from oblr.batch.types import RolloutBatch, StepStatistics
from oblr.gradnorm.measure import GradNorms
from oblr.kinds import Count
from oblr.policy.step import PolicyModule
from oblr.record.shown import show
from oblr.run.ranks import of_run

NAN, EXACT = float("nan"), GradNorms("exact", "two")
PERCENT = (10, 50, 90)


class GradStats(Observer):
    """Shows ``‖∇θ log π(o_i|q)‖``: histogram, mean, spread inside groups, and correlation with length.

    Where the baseline needs the norms they are the step's own; where it does not, they are computed here, with the
    parameters that the step starts from, at every ``every``-th step.

    Args:
        every: steps between measurements that the step itself would not make.
    """

    def __init__(self, every: Count = 5):
        self.every = every
        self.measured: Tensor | None = None

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        self.measured = None
        if not policy.baseline.needs_norms and trainer.current_epoch % self.every == 0:
            with policy.clock.phase("gradient statistics"):
                self.measured = of_run().gather(live_square_norms(policy, batch))

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        if self.measured is not None:
            stats.square_norms = self.measured  # for the callbacks that follow
        square_norms = stats.square_norms
        known = square_norms.isfinite().all(1)
        if not known.any():
            return
        norms, lengths = square_norms[known].sqrt(), stats.lengths[known].double()
        show(trainer, "gradnorm/per_sample", norms)
        show(trainer, "train/advantages", stats.advantages[known])
        show(trainer, "train/ratios", stats.ratios[known])
        quantiles = norms.quantile(torch.tensor(PERCENT, dtype=norms.dtype) / 100)
        policy.log_dict(
            {
                "gradnorm/mean": norms.mean(),
                **{f"gradnorm/q{percent}": quantile for percent, quantile in zip(PERCENT, quantiles, strict=True)},
                "gradnorm/cv_within_group": within_group_cv(square_norms[known]),
                "gradnorm/correlation_with_length": pearson_corrcoef(norms.flatten(), lengths.flatten()),
            }
        )


def live_square_norms(policy: PolicyModule, batch: RolloutBatch) -> Tensor:
    """``n_i`` of this rank's live groups, float64 [N, G], NaN elsewhere; for baselines that do without them."""
    norms, live = torch.full(batch.rewards.shape, NAN, dtype=torch.float64), live_groups(batch.rewards)
    for groups, parts in policy.micro_batches(batch, live):
        with (
            policy.trainer.precision_plugin.train_step_context(),  # Lightning enters it for the step alone
            EXACT.measure(policy.scorer, policy.scorer.lm, parts, batch.group_size) as measured,
        ):
            norms[groups] = measured.square_norms.view(-1, batch.group_size).cpu()
    norms[~live] = NAN  # a rank may have filled up with dead groups
    return norms


def within_group_cv(square_norms: Tensor) -> Tensor:
    """Mean over groups of the coefficient of variation of ``n_i``: how far from uniform. [N, G] → []."""
    return torch.mean(square_norms.std(1, correction=0) / square_norms.mean(1))
