"""James-Stein shrinkage across prompts (arXiv 2511.03710)."""

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups, others_mean
from oblr.baselines.gradient_weighted import GradientWeightedBaseline, renamed
from oblr.baselines.leave_one_out import leave_one_out_means


class ShrinkageBaseline(Baseline):
    """``b_i = (1 − λ_i) · mean_{j≠i} R_j + λ_i · mean of the step's other groups``: a noisy mean, drawn to a quiet one.

    ``λ_i = s²/m / (s²/m + τ²)`` of ``m = G − 1`` responses, with the variance ``s²`` of rewards inside a group and
    ``τ²`` of the true means of groups, both estimated from the other groups. Nothing in ``b_i`` depends on ``o_i``:
    unbiased.

    Degenerate cases: fewer than three groups in the step give no shrinkage. Groups that all behave alike give λ = 1. A
    group of equal rewards has advantages wherever λ > 0.

    Args:
        weighted: a former setting, which goes on working for a release: ``gradient_weighted`` with ``prior=step``.
    """

    leave_one_out = True

    def __new__(cls, weighted: bool = False) -> Baseline:  # type: ignore[misc]
        if not weighted:
            return super().__new__(cls)
        return renamed(GradientWeightedBaseline(prior="step"), "baseline.weighted=true", "baseline.prior=step")

    def __init__(self, weighted: bool = False): ...

    @property
    def words(self) -> str:
        return "mean reward of the other responses of the group, drawn to the step's other groups"

    def __call__(self, groups: Groups) -> Tensor:
        rewards = groups.rewards.double()
        shrink, mean = self.factor(groups), leave_one_out_means(rewards, torch.ones_like(rewards))
        return (rewards - (1 - shrink) * mean - shrink * others_mean(groups)).to(groups.rewards.dtype)

    def factor(self, groups: Groups) -> Tensor:
        """``λ``, float64 [n, 1]; 0 where there are fewer than two other groups."""
        step, own = groups.step_rewards.double(), groups.rewards.double()
        others, size = len(step) - 1, step.shape[1]
        if others < 2:
            return torch.zeros_like(own[:, :1])
        within = (step.var(1).sum() - own.var(1)) / others
        means, mean = step.mean(1), own.mean(1)
        between = (means.square().sum() - mean.square() - (means.sum() - mean).square() / others) / (others - 1)
        signal, noise = (between - within / size).clamp(min=0), within / (size - 1)
        return torch.where(noise + signal > 0, noise / (noise + signal), 0.0)[:, None]

    def live(self, groups: Groups) -> Tensor:
        alone = len(groups.step_rewards) < 3
        return super().live(groups) if alone else torch.ones(len(groups.rewards), dtype=torch.bool)
