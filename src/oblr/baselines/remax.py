"""ReMax (Li et al. 2023, arXiv 2310.10505)."""

from torch import Tensor

from oblr.baselines.base import Baseline, Groups


class ReMaxBaseline(Baseline):
    """``A_i = R_i − R(greedy response)``: what the policy gets when it does not explore. Unbiased.

    One response more per prompt is sampled, greedily, with the same weights. A single response a prompt is enough.

    Degenerate cases: a group all of whose rewards are the greedy one's has no advantages. Where sampling is much worse
    than the greedy response, most advantages are negative, and their variance is larger than with the mean reward.
    """

    needs_greedy = True

    @property
    def words(self) -> str:
        return "reward of a greedy response to the same prompt (ReMax)"

    def __call__(self, groups: Groups) -> Tensor:
        assert groups.greedy_rewards is not None
        return groups.rewards - groups.greedy_rewards[:, None]

    def live(self, groups: Groups) -> Tensor:
        return (self(groups) != 0).any(1)
