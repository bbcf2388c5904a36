"""Weighted means of a group's rewards: the one formula that every group baseline is a weighting of."""

import torch
from torch import Tensor


def leave_one_out_means(rewards: Tensor, weights: Tensor, prior: Tensor | None = None) -> Tensor:
    """``b_i = (Σ_{j≠i} w_j R_j + S) / (Σ_{j≠i} w_j + W)``.

    The sums over ``j ≠ i`` are formed directly (G² products a group) instead of by taking ``w_i`` out of the total,
    which cancels where one weight dominates. Where the others' weights are all zero, their plain mean is taken.

    Args:
        rewards: [N, G], G ≥ 2.  weights: non-negative [N, G].
        prior: ``S`` and ``W``, float64 [2, N], which count as one response more; None: zeros.

    Returns:
        float64 [N, G].
    """
    return _means(rewards, weights, ~torch.eye(rewards.shape[-1], dtype=torch.bool, device=rewards.device), prior)


def cross_fitted_means(rewards: Tensor, weights: Tensor, prior: Tensor | None = None) -> Tensor:
    """The same over the half of the group that ``i`` is not in: even against odd members."""
    odd = torch.arange(rewards.shape[-1], device=rewards.device) % 2 == 1
    return _means(rewards, weights, odd[:, None] != odd, prior)


def pooled_means(rewards: Tensor, weights: Tensor, prior: Tensor | None = None) -> Tensor:
    """The same over the whole group, ``i`` included."""
    size = rewards.shape[-1]
    return _means(rewards, weights, torch.ones(size, size, dtype=torch.bool, device=rewards.device), prior)


def _means(rewards: Tensor, weights: Tensor, used: Tensor, prior: Tensor | None) -> Tensor:
    """Weighted means over the ``used`` [G, G] members of each response's group."""
    weights = weights.double()[..., None, :] * used
    total = weights.sum(-1, keepdim=True)
    share = torch.where(total > 0, weights / total, used / used.sum(-1, keepdim=True))
    means = (share * rewards.double()[..., None, :]).sum(-1)
    if prior is None:
        return means
    more, weight = prior[..., None]
    trusted = torch.where(weight > 0, weight / (total[..., 0] + weight), 0.0)
    return means + trusted * (torch.where(weight > 0, more / weight, 0.0) - means)
