"""Plain REINFORCE (Williams 1992)."""

from torch import Tensor

from oblr.baselines.base import Baseline, Groups


class NoBaseline(Baseline):
    """``A_i = R_i``. Unbiased, and of the largest variance. Only responses of reward 0 have no advantage."""

    @property
    def words(self) -> str:
        return "nothing: the reward itself is the advantage"

    def __call__(self, groups: Groups) -> Tensor:
        return groups.rewards

    def live(self, groups: Groups) -> Tensor:
        return (groups.rewards != 0).any(1)
