"""Weighted means of a group's rewards: the one formula that every group baseline is a weighting of."""

import torch
from torch import Tensor


def leave_one_out_means(rewards: Tensor, weights: Tensor) -> Tensor:
    """``b_i = Σ_{j≠i} w_j R_j / Σ_{j≠i} w_j``.

    The sums over ``j ≠ i`` are formed directly (G² products a group) instead of by taking ``w_i`` out of the total,
    which cancels where one weight dominates. Where the others' weights are all zero, their plain mean is taken.

    Args:
        rewards: [N, G], G ≥ 2.  weights: non-negative [N, G].

    Returns:
        float64 [N, G].
    """
    return _means(rewards, weights, ~torch.eye(rewards.shape[-1], dtype=torch.bool, device=rewards.device))


def cross_fitted_means(rewards: Tensor, weights: Tensor) -> Tensor:
    """The same over the half of the group that ``i`` is not in: even against odd members."""
    odd = torch.arange(rewards.shape[-1], device=rewards.device) % 2 == 1
    return _means(rewards, weights, odd[:, None] != odd)


def pooled_means(rewards: Tensor, weights: Tensor) -> Tensor:
    """The same over the whole group, ``i`` included."""
    size = rewards.shape[-1]
    return _means(rewards, weights, torch.ones(size, size, dtype=torch.bool, device=rewards.device))


def _means(rewards: Tensor, weights: Tensor, used: Tensor) -> Tensor:
    """Weighted means over the ``used`` [G, G] members of each response's group."""
    weights = weights.double()[..., None, :] * used
    total = weights.sum(-1, keepdim=True)
    share = torch.where(total > 0, weights / total, used / used.sum(-1, keepdim=True))
    return (share * rewards.double()[..., None, :]).sum(-1)
