"""A baseline that remembers a prompt's earlier responses (compare arXiv 2505.07527, 2603.18444)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.baselines.leave_one_out import leave_one_out_means
from oblr.kinds import Share


class HistoryBaseline(Baseline):
    """``A_i = R_i − b_i`` with ``b_i = (Σ_{j≠i} w_j R_j + S) / (Σ_{j≠i} w_j + W)``.

    ``S`` and ``W`` are the sums of ``w_j R_j`` and ``w_j`` over all responses of the prompt's earlier visits, which
    count ``γ`` times less with each visit since: the optimal baseline ``E[wR]/E[w]`` (arXiv 2511.23310, Theorem 7), of
    more responses than the group has. Nothing in ``b_i`` depends on ``o_i``. Unbiased.

    Degenerate cases: a prompt's first visit is the leave-one-out baseline of its group, and so is a visit whose earlier
    ones had weights of zero. To a history equal rewards may be news: groups that have them take part, and cost a pass.

    Args:
        discount: ``γ``, what of an earlier visit to a prompt counts, with each one since; 0 remembers nothing.
        weighted: whether ``w_j = ρ_j² ‖∇θ log π(o_j|q)‖²``, squared gradient norms; else 1, as rivals have it.
    """

    leave_one_out = True

    def __init__(self, discount: Share = 0.75, weighted: bool = True):
        self.discount, self.needs_norms = discount, weighted
        self.sums = dict[int, Tensor]()  # S and W of a problem, discounted, float64 [2]

    @property
    def words(self) -> str:
        kind = "weighted mean" if self.needs_norms else "mean"
        return f"{kind} reward of the other responses and of those at earlier visits of the prompt"

    def __call__(self, groups: Groups) -> Tensor:
        rewards, weights = groups.rewards.double(), self.reward_weights(groups)
        earlier, weight = self.earlier(groups)
        # to each response the history is one more of the others, of weight W
        both = leave_one_out_means(torch.cat([rewards, earlier], 1), torch.cat([weights, weight], 1))[:, :-1]
        means = torch.where(weight > 0, both, leave_one_out_means(rewards, weights))
        return (rewards - means).to(groups.rewards.dtype)

    def live(self, groups: Groups) -> Tensor:
        return torch.ones(len(groups.rewards), dtype=torch.bool)

    def reward_weights(self, groups: Groups) -> Tensor:
        """``w_j``, float64 [n, G]."""
        return groups.reward_weights if self.needs_norms else torch.ones_like(groups.rewards, dtype=torch.float64)

    def earlier(self, groups: Groups) -> tuple[Tensor, Tensor]:
        """``S/W``, 0 where there is no history, and ``W``, float64 [n, 1] both."""
        none = torch.zeros(2, dtype=torch.float64)
        sums = torch.stack([self.sums.get(problem, none) for problem in problems_of(groups)])
        total, weight = sums.split(1, 1)
        return torch.where(weight > 0, total / weight, 0.0), weight

    def learn(self, groups: Groups, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> None:
        weights = self.reward_weights(groups)
        found = torch.stack([(weights * groups.rewards).sum(1), weights.sum(1)], 1)
        for problem, sums in zip(problems_of(groups), found, strict=True):
            self.sums[problem] = self.discount * (self.sums.get(problem, 0) + sums)

    def state_dict(self) -> dict[str, Any]:
        sums = torch.stack([torch.zeros(2, dtype=torch.float64), *self.sums.values()])[1:]
        return {"problems": torch.tensor([*self.sums], dtype=torch.int64), "sums": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = dict(zip(state["problems"].tolist(), state["sums"], strict=True))


def problems_of(groups: Groups) -> list[int]:
    assert groups.problems is not None
    return groups.problems.tolist()
