"""Per-sample gradient norms, for every baseline alike."""

import torch
from lightning import Trainer
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef

from callbacks.observer import Observer, tensorboard
from oblr.policy import PolicyModule
from oblr.ranks import of_run
from oblr.types import RolloutBatch, StepReport


class GradStats(Observer):
    """Shows ``‖∇θ log π(o_i|q)‖``: histogram, mean, spread inside groups, and correlation with length.

    Where the baseline needs the norms they are the step's own; where it does not, they are computed here, with the
    parameters that the step starts from, at every ``every``-th step.

    Args:
        every: steps between measurements that the step itself would not make.
    """

    def __init__(self, every: int = 5):
        self.every = every
        self.measured: Tensor | None = None

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        self.measured = None
        if not policy.baseline.needs_norms and trainer.current_epoch % self.every == 0:
            with policy.clock.phase("gradient statistics"):
                self.measured = of_run().gather(policy.live_square_norms(batch))

    def on_step(self, trainer: Trainer, policy: PolicyModule, report: StepReport) -> None:
        if self.measured is not None:
            report.square_norms = self.measured  # for the callbacks that follow
        square_norms = report.square_norms
        known = square_norms.isfinite().all(1)
        if not known.any():
            return
        norms, lengths = square_norms[known].sqrt(), report.lengths[known].double()
        if writer := tensorboard(trainer):
            writer.add_histogram("gradnorm/per_sample", norms.flatten(), trainer.current_epoch)
        policy.log_dict(
            {
                "gradnorm/mean": norms.mean(),
                "gradnorm/cv_within_group": within_group_cv(square_norms[known]),
                "gradnorm/correlation_with_length": pearson_corrcoef(norms.flatten(), lengths.flatten()),
            }
        )


def within_group_cv(square_norms: Tensor) -> Tensor:
    """Mean over groups of the coefficient of variation of ``n_i``: how far from uniform. [N, G] → []."""
    return torch.mean(square_norms.std(1, correction=0) / square_norms.mean(1))
