"""A baseline for all prompts alike, as in REINFORCE++ (Hu et al. 2025, arXiv 2501.03262)."""

from torch import Tensor

from oblr.baselines.base import Baseline, Groups, batch_live
from oblr.kinds import Positive


class BatchMeanBaseline(Baseline):
    """``A_i = R_i − mean of all other rewards of the step``. Unbiased, but blind to how hard a prompt is.

    REINFORCE++ includes the own sample and divides by the standard deviation over the batch; ``normalise`` does.

    Degenerate cases: a group of equal rewards has advantages, unless all rewards of the step are equal. A single
    response in the step has none to compare it with: ``b = 0``, and ``normalise`` is refused.

    Args:
        normalise: whether ``A_i = (R_i − mean R) / (std R + ε)`` over the step: biased, as all normalising is.
        epsilon: ``ε``, which keeps that division finite, in units of reward.
    """

    def __init__(self, normalise: bool = False, epsilon: Positive = 1e-6):
        self.normalise, self.epsilon = normalise, epsilon

    @property
    def words(self) -> str:
        kind = "all rewards, and divided by their standard deviation" if self.normalise else "all other rewards"
        return f"mean of {kind} of the step"

    def __call__(self, groups: Groups) -> Tensor:
        rewards, step = groups.rewards.double(), groups.step_rewards.double()
        if self.normalise:
            return ((rewards - step.mean()) / (step.std(correction=0) + self.epsilon)).to(groups.rewards.dtype)
        return (rewards - (step.sum() - rewards) / max(step.numel() - 1, 1)).to(groups.rewards.dtype)

    def live(self, groups: Groups) -> Tensor:
        alone = groups.step_rewards.numel() == 1 and not self.normalise
        return groups.rewards[:, 0] != 0 if alone else batch_live(groups)
