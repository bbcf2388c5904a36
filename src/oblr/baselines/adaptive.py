"""A quieter estimate of the optimal baseline, chosen by how earlier steps would have fared under it."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.kinds import Decay, NonNegative

#: Of the weights, how much is the response's own norm; the rest is what its reward lets one expect.
OWN = (0.0, 0.25, 0.5, 1.0)


class AdaptiveBaseline(Baseline):
    """``A_i = R_i − b_i`` with ``b_i = (Σ_{j≠i} w_j R_j + κ b̂) / (Σ_{j≠i} w_j + κ)``.

    The optimal baseline ``E[nR]/E[n]`` (arXiv 2511.23310, Theorem 7) depends on the norms through ``E[n|R]`` alone:
    what else moves ``n_j`` inside a group is noise to its estimate. So the weights are mixed,
    ``w_j = α n_j/n̄ + (1−α) φ(R_j)/φ̄`` (means over ``j ≠ i``), with a straight line ``φ`` through ``E[n|R]``, fitted to
    earlier steps. ``κ`` responses' worth of the other groups' weighted mean ``b̂`` quieten it further (compare arXiv
    2511.03710). ``(α, κ)`` is the pair of least second moment ``Σ n_i (R_i − b_i)²`` in earlier steps.

    Nothing in ``b_i`` depends on ``o_i``: earlier steps and other responses are all it is made of. Unbiased.

    Degenerate cases: the first step has no history and takes ``α = 1`` and the smallest ``κ``. With ``κ`` in play
    groups of equal rewards have advantages, and cost a pass like any other.

    Args:
        pseudo_counts: values of ``κ`` to choose from, how many responses' worth of the other groups' mean is mixed in;
            ``[0]`` leaves groups of equal rewards without advantages.
        decay: what the moving averages over steps keep at a step.
    """

    needs_norms = True
    leave_one_out = True

    def __init__(self, pseudo_counts: Sequence[NonNegative] = (0.0,), decay: Decay = 0.9):
        self.choices = list(product(OWN, pseudo_counts))
        self.decay = decay
        self.fit = torch.zeros(5, dtype=torch.float64)  # Σ 1, R, R², u, uR with u = n over its step's mean
        self.second_moments = torch.zeros(len(self.choices), dtype=torch.float64)

    @property
    def words(self) -> str:
        return "mean reward of the other responses, with weights and a prior that are fitted to earlier steps"

    def __call__(self, groups: Groups) -> Tensor:
        if self.fit[0] == 0:
            best = self.choices.index((1.0, min(pseudo_count for _, pseudo_count in self.choices)))
        else:
            best = int(self.second_moments.argmin())
        return (groups.rewards - self.baselines(groups)[best]).to(groups.rewards.dtype)

    def live(self, groups: Groups) -> Tensor:
        if all(pseudo_count == 0 for _, pseudo_count in self.choices):
            return super().live(groups)
        return torch.ones(len(groups.rewards), dtype=torch.bool)

    def expected(self, rewards: Tensor) -> Tensor:
        """``φ(R)``: weights as the reward lets one expect them, relative to their mean; positive."""
        count, r, rr, u, ur = self.fit.tolist()
        variance = count * rr - r * r
        slope = (count * ur - r * u) / variance if variance > 1e-12 * count * rr else 0.0
        return (u + slope * (count * rewards - r)).div(max(count, 1e-300)).clamp(min=0.05)

    def baselines(self, groups: Groups) -> Tensor:
        """``b_i`` for every pair of choices, float64 [choices, n, G]."""
        rewards = groups.rewards.double()
        others = (~torch.eye(rewards.shape[1], dtype=torch.bool)).double()
        target = self.target(groups)

        def relative(weights: Tensor) -> Tensor:
            """``w_j`` over their mean for ``j ≠ i``, [n, G (i), G (j)]."""
            rows = weights[:, None, :] * others
            mean = rows.sum(2, keepdim=True) / (rewards.shape[1] - 1)
            return torch.where(mean > 0, rows / mean, others)

        own, smooth = relative(groups.reward_weights), relative(self.expected(rewards))
        baselines = []
        for share, pseudo_count in self.choices:
            weights = share * own + (1 - share) * smooth
            sums = (weights * rewards[:, None, :]).sum(2) + pseudo_count * target
            baselines.append(sums / (weights.sum(2) + pseudo_count))
        return torch.stack(baselines)

    def target(self, groups: Groups) -> Tensor:
        """The weighted mean reward of the step's other groups, float64 [n, 1]; of earlier steps if there is none."""
        step, rewards = groups.step_rewards.double(), groups.rewards.double()
        if len(step) == 1:
            return (self.fit[4] / self.fit[3].clamp(min=1e-300)).view(1, 1)
        weights, own = self.expected(step), self.expected(rewards)
        sums = (weights * step).sum() - (own * rewards).sum(1, keepdim=True)
        return sums / (weights.sum() - own.sum(1, keepdim=True))

    def learn(self, groups: Groups, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> None:
        rewards, weights = groups.rewards.double(), groups.reward_weights
        u = weights / weights.mean().clamp(min=1e-300)
        errors = weights * (rewards - self.baselines(groups)).square()
        terms = torch.stack([torch.ones_like(u), rewards, rewards.square(), u, u * rewards]).mean((1, 2))
        self.fit = self.decay * self.fit + (1 - self.decay) * terms
        moments = errors.mean((1, 2)) / errors.mean().clamp(min=1e-300)
        self.second_moments = self.decay * self.second_moments + (1 - self.decay) * moments

    def state_dict(self) -> dict[str, Any]:
        return {"fit": self.fit, "second_moments": self.second_moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fit, self.second_moments = state["fit"], state["second_moments"]
