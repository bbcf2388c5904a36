"""GRPO's group normalisation (Shao et al. 2024, arXiv 2402.03300)."""

from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.kinds import Positive


class GroupMeanStdBaseline(Baseline):
    """``A_i = (R_i − mean R) / (std R + ε)`` over the group, own sample included.

    Biased: the mean contains ``R_i`` (advantages shrink by 1 − 1/G) and the division weights prompts by difficulty.
    A group of equal rewards has zero advantages; one response a prompt is refused.

    Args:
        epsilon: ``ε``, which keeps the division by the standard deviation (of the group as a population) finite, in
            units of reward.
    """

    def __init__(self, epsilon: Positive = 1e-6):
        self.epsilon = epsilon

    @property
    def words(self) -> str:
        return "mean reward of the group, and divided by its standard deviation (GRPO)"

    def __call__(self, groups: Groups) -> Tensor:
        rewards = groups.rewards
        return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, correction=0, keepdim=True) + self.epsilon)
