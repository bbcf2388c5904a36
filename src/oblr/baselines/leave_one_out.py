"""The one leave-one-out formula that every unbiased group baseline is a weighting of."""

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
    group_size = rewards.shape[-1]
    others = ~torch.eye(group_size, dtype=torch.bool, device=rewards.device)
    weights = weights.double()[..., None, :] * others
    total = weights.sum(-1, keepdim=True)
    share = torch.where(total > 0, weights / total, others / (group_size - 1))
    return (share * rewards.double()[..., None, :]).sum(-1)
