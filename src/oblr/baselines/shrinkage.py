"""James-Stein shrinkage across prompts (arXiv 2511.03710)."""

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups, others_mean
from oblr.baselines.leave_one_out import leave_one_out_means


class ShrinkageBaseline(Baseline):
    """``b_i = (1 − λ) · mean_{j≠i} R_j + λ · mean of the step's other groups``: a noisy mean, drawn to a quiet one.

    ``λ = s²/(G−1) / (s²/(G−1) + τ²)`` with the variance ``s²`` of rewards inside a group and ``τ²`` of the true means
    of groups, both estimated from the other groups. Nothing in ``b_i`` depends on ``o_i``: unbiased.

    Degenerate cases: a single group in the step gives RLOO. Groups that all behave alike give λ = 1. A group of equal
    rewards has advantages wherever λ > 0.
    """

    leave_one_out = True

    def __call__(self, groups: Groups) -> Tensor:
        rewards = groups.rewards.double()
        mean = leave_one_out_means(rewards, torch.ones_like(rewards))
        shrink = self.factor(groups)
        return (rewards - (1 - shrink) * mean - shrink * others_mean(groups)).to(groups.rewards.dtype)

    def factor(self, groups: Groups) -> Tensor:
        """λ of each group from all others, float64 [n, 1]; 0 where there are fewer than two others."""
        step, own = groups.step_rewards.double(), groups.rewards.double()
        others, size = len(step) - 1, step.shape[1]
        if others < 2:
            return own.new_zeros(len(own), 1)
        within = (step.var(1).sum() - own.var(1)) / others
        means, mean = step.mean(1), own.mean(1)
        between = (means.square().sum() - mean.square() - (means.sum() - mean).square() / others) / (others - 1)
        noise, signal = within / (size - 1), (between - within / size).clamp(min=0)
        return torch.where(noise + signal > 0, noise / (noise + signal), 0.0)[:, None]

    def live(self, step_rewards: Tensor) -> Tensor:
        return torch.ones(len(step_rewards), dtype=torch.bool) if len(step_rewards) > 2 else super().live(step_rewards)
