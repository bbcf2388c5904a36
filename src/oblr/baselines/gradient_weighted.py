"""The optimal baseline of OBLR-PO, estimated from the group (arXiv 2511.23310, Theorem 7) and a prior."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.baselines.leave_one_out import cross_fitted_means, leave_one_out_means, pooled_means
from oblr.baselines.prior import EarlierSteps, EarlierVisits, OtherGroups, Prior
from oblr.kinds import NOT_EMPTY, Positive, Share, checked

Form = Literal["leave_one_out", "cross_fitted", "pooled"]
#: Which responses take part, in words.
OF: dict[Form, str] = {
    "leave_one_out": "the other responses of the group",
    "cross_fitted": "the half of the group that it is not in",
    "pooled": "the whole group, its own included",
}
PSEUDO_COUNTS = (1.0, 4.0, 16.0, 64.0)
Source = Literal["none", "step", "past", "history"]
PRIORS: dict[Source, type[Prior]] = {"step": OtherGroups, "past": EarlierSteps, "history": EarlierVisits}
#: Where each comes from, in words.
FROM: dict[Source, str] = {
    "step": "the step's other groups",
    "past": "earlier steps",
    "history": "earlier visits of the prompt",
}


@checked("baseline")
class GradientWeightedBaseline(Baseline):
    """``A_i = R_i − b_i``, ``b_i = (Σ_{j≠i} w_j R_j + K S)/(Σ_{j≠i} w_j + K W)``, ``w_j = ρ_j² ‖∇θ log π(o_j|q)‖²``.

    Among baselines that depend on the prompt alone, ``b* = E[wR]/E[w]`` gives the group gradient its smallest variance
    (Theorem 7). The paper's estimate of it is ``K = 0``. That fails where most responses agree: if the others of the
    group are all right, it is 1 whatever their weights, and the one wrong response, whose ``w`` is largest, meets the
    whole of ``A = −1``. The prior ``S ≈ E[wR]``, ``W ≈ E[w]`` of responses elsewhere knows how long such gradients are;
    a posterior mean under a gamma prior of ``K`` responses has this form.

    Bias: none for any ``K`` and any prior, because ``o_i`` enters neither, but for ``form=pooled``. A shift of all
    rewards shifts ``S`` by as many ``W``, and ``b_i`` with it, so that no advantage changes.

    Args:
        form: which responses ``j`` the sums are over.
            ``leave_one_out``: all but ``i``, which keeps the gradient unbiased for any weights.
            ``cross_fitted``: the half of the group that ``i`` is not in; unbiased too, and noisier. The coefficients
            of one half then depend on the norms of the other alone, so that no response meets its own norm.
            ``pooled``: the whole group; biased at order 1/G.
        prior: where ``S`` and ``W`` are from. ``none``: there is no prior, as in the paper. ``step``: means over the
            step's other groups, which takes two passes. ``past``: moving averages over earlier steps.
            ``history``: sums over earlier responses to the very prompt.
        pseudo_counts: values of ``K`` to choose from, in responses (``history``: what an earlier response counts beside
            one of the group). Taken is the one of least ``Σ w_i (R_i − b_i)²`` in earlier steps, at first the least.
        decay: what the prior and that choice keep of an earlier step, or of an earlier visit to the prompt.

    Degenerate cases: equal weights without a prior give RLOO, and so do groups of two. Where all weights in the sums
    are zero, ``b_i`` is the plain mean there. A first step, or a prompt's first visit, has no prior. To a prior equal
    rewards may be news: groups that have them take part, and cost a pass.
    """

    needs_norms = True
    leave_one_out = True

    def __init__(
        self,
        form: Form = "leave_one_out",
        prior: Source = "none",
        pseudo_counts: Annotated[Sequence[Positive], NOT_EMPTY] = PSEUDO_COUNTS,
        decay: Share = 0.9,
    ):
        means = {"leave_one_out": leave_one_out_means, "cross_fitted": cross_fitted_means, "pooled": pooled_means}
        self.form, self.means, self.source = form, means[form], prior
        self.prior = PRIORS[prior](decay) if prior != "none" else None
        self.needs_step_weights = self.prior is not None and self.prior.whole_step
        self.pseudo_counts, self.decay = sorted(pseudo_counts), decay
        self.second_moments = torch.zeros(len(self.pseudo_counts), dtype=torch.float64)  # of each K, in earlier steps

    @property
    def words(self) -> str:
        prior = "" if self.prior is None else f", with a prior from {FROM[self.source]}"
        return f"weighted mean reward of {OF[self.form]}{prior}"

    def __call__(self, groups: Groups) -> Tensor:
        if self.prior is None:
            baselines = self.means(groups.rewards, groups.reward_weights)
        else:
            best = self.pseudo_counts[int(self.second_moments.argmin())]
            baselines = self.means(groups.rewards, groups.reward_weights, best * self.prior(groups))
        return (groups.rewards - baselines).to(groups.rewards.dtype)

    def live(self, groups: Groups) -> Tensor:
        return super().live(groups) if self.prior is None else torch.ones(len(groups.rewards), dtype=torch.bool)

    def learn(self, groups: Groups, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> None:
        if self.prior is None:
            return
        prior, rewards = self.prior(groups), groups.rewards.double()
        if prior[1].any():
            each = (rewards - self.means(rewards, groups.reward_weights, count * prior) for count in self.pseudo_counts)
            moments = torch.stack([(groups.reward_weights * advantages.square()).mean() for advantages in each])
            # steps count alike, whatever the length of their gradients
            self.second_moments = self.decay * self.second_moments + moments / moments.mean().clamp(min=1e-300)
        self.prior.learn(groups)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.prior is None else {"second_moments": self.second_moments, "prior": self.prior.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.prior is not None and "prior" in state:
            self.second_moments = state["second_moments"]
            self.prior.load_state_dict(state["prior"])
        elif self.prior is not None and "problems" in state:  # as baseline=history kept it, a release ago
            self.prior.load_state_dict(state)


def renamed(new: GradientWeightedBaseline, old: str, settings: str) -> GradientWeightedBaseline:
    """``new``, which says that the setting ``old`` is called otherwise now."""
    new.warning = f"{old} is called baseline=gradient_weighted {settings} now; the old name goes with the next release"
    return new
