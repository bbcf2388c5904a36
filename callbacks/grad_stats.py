"""Per-sample gradient norms, for every baseline alike."""

import torch
from lightning import Trainer
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef

from callbacks.observer import Observer
from oblr.baselines.base import Groups
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

    Where the baseline needs the norms they are the step's own. Those that the step itself would not measure, of groups
    without advantages too, are computed here with the parameters that it starts from, at every ``every``-th step.

    Args:
        every: steps between measurements that the step itself would not make.
    """

    def __init__(self, every: Count = 10):
        self.every = every
        self.measured: Tensor | None = None

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        self.measured = None
        if trainer.current_epoch % self.every == 0:
            with policy.clock.phase("gradient statistics"):
                self.measured = of_run().gather(measure(policy, batch, unmeasured(policy, batch)))

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        if self.measured is not None:  # for the callbacks that follow
            for name, found in zip(("square_norms", "log_ratios"), self.measured.unbind(-1), strict=True):
                here = getattr(stats, name)
                setattr(stats, name, torch.where(here.isnan(), found, here))
        square_norms = stats.square_norms
        known = stats.live & square_norms.isfinite().all(1)
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


def unmeasured(policy: PolicyModule, batch: RolloutBatch) -> Tensor:
    """bool [N]: this rank's groups whose norms the step will not find by itself."""
    if not (policy.baseline.needs_norms and policy.gradnorm.has_norms):
        return torch.ones(batch.n_groups, dtype=torch.bool)
    known = batch.rewards, torch.zeros_like(batch.rewards), batch.lengths, of_run().gather(batch.rewards)
    return ~policy.baseline.live(Groups(*known, batch.greedy_rewards, problems=batch.problems))


def measure(policy: PolicyModule, batch: RolloutBatch, wanted: Tensor) -> Tensor:
    """``n_i`` and ``log ρ_i`` of this rank's ``wanted`` groups, float64 [N, G, 2]; NaN elsewhere."""
    found = torch.full((*batch.rewards.shape, 2), NAN, dtype=torch.float64)
    for groups, parts in policy.micro_batches(batch, wanted):
        with (
            policy.trainer.precision_plugin.train_step_context(),  # Lightning enters it for the step alone
            EXACT.measure(policy.scorer, policy.scorer.lm, parts, batch.group_size) as measured,
        ):
            both = torch.stack([measured.square_norms, measured.tokens.sequence_logs.double()], -1)
            found[groups] = both.view(-1, batch.group_size, 2).cpu()
    found[~wanted] = NAN  # a rank may have filled up with others
    return found


def within_group_cv(square_norms: Tensor) -> Tensor:
    """Mean over groups of the coefficient of variation of ``n_i``: how far from uniform. [N, G] → []."""
    return torch.mean(square_norms.std(1, correction=0) / square_norms.mean(1))
