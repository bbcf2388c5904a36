"""Length-weighted baseline, on-policy RL with optimal reward baseline (Hao et al. 2025, arXiv 2505.23585)."""

from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.baselines.leave_one_out import leave_one_out_means, pooled_means


class OPOBaseline(Baseline):
    """``A_i = R_i − Σ_j l_j R_j / Σ_j l_j`` with response lengths ``l``: the optimal baseline where ``n_i ∝ l_i``.

    The paper includes the own sample (``pooled``), which biases the gradient at order 1/G; leaving it out does not.
    Equal lengths give RLOO (pooled: the group mean). A group of equal rewards has zero advantages.

    Args:
        pooled: whether the mean contains the own sample, as published; biased.
    """

    leave_one_out = True

    def __init__(self, pooled: bool = False):
        self.pooled, self.means = pooled, pooled_means if pooled else leave_one_out_means

    @property
    def words(self) -> str:
        whose = "all responses of the group" if self.pooled else "the other responses of the group"
        return f"mean reward of {whose}, weighted by their lengths (OPO)"

    def __call__(self, groups: Groups) -> Tensor:
        return (groups.rewards - self.means(groups.rewards, groups.lengths)).to(groups.rewards.dtype)
