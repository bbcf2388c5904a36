"""The group mean without GRPO's division (Dr. GRPO: Liu et al. 2025, arXiv 2503.20783)."""

from torch import Tensor

from oblr.baselines.base import Baseline, Groups


class GroupMeanBaseline(Baseline):
    """``A_i = R_i − mean R`` over the group, own sample included: RLOO's advantages times ``1 − 1/G``.

    The direction is unbiased, the length is short by that factor. A group of equal rewards has zero advantages;
    one response a prompt is refused.
    """

    @property
    def words(self) -> str:
        return "mean reward of the group, its own included"

    def __call__(self, groups: Groups) -> Tensor:
        return groups.rewards - groups.rewards.mean(1, keepdim=True)
