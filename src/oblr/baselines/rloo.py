"""REINFORCE leave-one-out (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740)."""

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.baselines.leave_one_out import leave_one_out_means


class RLOOBaseline(Baseline):
    """``A_i = R_i − (1/(G−1)) Σ_{j≠i} R_j``: the mean reward of the other responses. Unbiased."""

    leave_one_out = True

    @property
    def words(self) -> str:
        return "mean reward of the other responses of the group (RLOO)"

    def __call__(self, groups: Groups) -> Tensor:
        rewards = groups.rewards
        return (rewards - leave_one_out_means(rewards, torch.ones_like(rewards))).to(rewards.dtype)
