"""James-Stein shrinkage across prompts (arXiv 2511.03710)."""

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups, others_mean
from oblr.baselines.leave_one_out import leave_one_out_means


class ShrinkageBaseline(Baseline):
    """``b_i = (1 − λ_i) · mean_{j≠i} R_j + λ_i · mean of the step's other groups``: a noisy mean, drawn to a quiet one.

    ``λ_i = s²/m_i / (s²/m_i + τ²)`` with the variance ``s²`` of rewards inside a group and ``τ²`` of the true means of
    groups, both estimated from the other groups. The mean is of ``m_i = G − 1`` responses; if ``weighted``, it is
    weighted as in ``gradient_weighted``, and ``m_i = (Σ_{j≠i} w_j)² / Σ_{j≠i} w_j²`` is the number of responses that
    would be as noisy if weights told nothing of rewards. Nothing in ``b_i`` depends on ``o_i``: unbiased.

    Degenerate cases: fewer than three groups in the step give no shrinkage. Groups that all behave alike give λ = 1. A
    group of equal rewards has advantages wherever λ > 0.

    Args:
        weighted: whether the mean that is shrunk is weighted by ``w_j = ρ_j² ‖∇θ log π(o_j|q)‖²``.
    """

    leave_one_out = True

    def __init__(self, weighted: bool = False):
        self.needs_norms = weighted

    @property
    def words(self) -> str:
        kind = "weighted mean" if self.needs_norms else "mean"
        return f"{kind} reward of the other responses of the group, drawn to the step's other groups"

    def __call__(self, groups: Groups) -> Tensor:
        rewards = groups.rewards.double()
        weights = groups.reward_weights if self.needs_norms else torch.ones_like(rewards)
        shrink = self.factor(groups, weights)
        mean = leave_one_out_means(rewards, weights)
        return (rewards - (1 - shrink) * mean - shrink * others_mean(groups)).to(groups.rewards.dtype)

    def factor(self, groups: Groups, weights: Tensor) -> Tensor:
        """``λ_i``, float64 [n, G]; 0 where there are fewer than two other groups."""
        step, own = groups.step_rewards.double(), groups.rewards.double()
        others, size = len(step) - 1, step.shape[1]
        if others < 2:
            return torch.zeros_like(own)
        within = (step.var(1).sum() - own.var(1)) / others
        means, mean = step.mean(1), own.mean(1)
        between = (means.square().sum() - mean.square() - (means.sum() - mean).square() / others) / (others - 1)
        signal = (between - within / size).clamp(min=0)[:, None]
        noise = within[:, None] / leave_one_out_sizes(weights)
        return torch.where(noise + signal > 0, noise / (noise + signal), 0.0)

    def live(self, groups: Groups) -> Tensor:
        alone = len(groups.step_rewards) < 3
        return super().live(groups) if alone else torch.ones(len(groups.rewards), dtype=torch.bool)


def leave_one_out_sizes(weights: Tensor) -> Tensor:
    """``(Σ_{j≠i} w_j)² / Σ_{j≠i} w_j²``, float64 [n, G]; G − 1 where all of them are zero."""
    others = (~torch.eye(weights.shape[1], dtype=torch.bool)).double()
    total, squares = weights.double() @ others, weights.double().square() @ others
    return torch.where(squares > 0, total.square() / squares, others.sum(1))
