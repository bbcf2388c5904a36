"""The optimal baseline of OBLR-PO, estimated from the group (arXiv 2511.23310, Theorem 7)."""

from typing import Literal

from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.baselines.leave_one_out import cross_fitted_means, leave_one_out_means, pooled_means
from oblr.kinds import checked

Form = Literal["leave_one_out", "cross_fitted", "pooled"]
#: Which responses take part, in words.
OF: dict[Form, str] = {
    "leave_one_out": "the other responses of the group",
    "cross_fitted": "the half of the group that it is not in",
    "pooled": "the whole group, its own included",
}


@checked("baseline")
class GradientWeightedBaseline(Baseline):
    """``A_i = R_i − b_i`` with ``b_i = Σ_j w_j R_j / Σ_j w_j`` and ``w_j = ρ_j² ‖∇θ log π(o_j|q)‖²``.

    Among baselines that depend on the prompt alone, ``E[wR]/E[w]`` gives the group gradient its smallest variance.

    Args:
        form: which responses ``j`` the sums are over.
            ``leave_one_out``: all but ``i``, which keeps the gradient unbiased for any weights.
            ``cross_fitted``: the half of the group that ``i`` is not in; unbiased too, and noisier. The coefficients
            of one half then depend on the norms of the other alone, so that no response meets its own norm.
            ``pooled``: the whole group; biased at order 1/G.

    Degenerate cases: equal weights give RLOO. Where all weights in the sums are zero, ``b_i`` is the plain mean there.
    """

    needs_norms = True
    leave_one_out = True

    def __init__(self, form: Form = "leave_one_out"):
        means = {"leave_one_out": leave_one_out_means, "cross_fitted": cross_fitted_means, "pooled": pooled_means}
        self.form, self.means = form, means[form]

    @property
    def words(self) -> str:
        return f"weighted mean reward of {OF[self.form]}"

    def __call__(self, groups: Groups) -> Tensor:
        return (groups.rewards - self.means(groups.rewards, groups.reward_weights)).to(groups.rewards.dtype)
