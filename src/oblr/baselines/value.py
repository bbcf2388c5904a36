"""A learnt value of every state, as in PPO (Schulman et al. 2017, arXiv 1707.06347)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.batch.types import ResponseTokens
from oblr.kinds import Decay, Positive, Share, checked


@checked("baseline")
class ValueBaseline(Baseline):
    """``A_it = Σ_{s≥t} λ^(s−t) δ_is``, ``δ_it = V_i,t+1 − V_it``, ``V`` after the end being ``R_i`` (arXiv 1506.02438).

    ``V_it = ⟨w, h_it⟩ + c`` reads the reward to expect from what the policy's own head sees before token ``t``. It is a
    ridge regression on a moving average over steps: no gradient reaches the policy, no learning rate is to be tuned,
    and no second network is to be kept. Rewards come at the end and are not discounted.

    ``λ = 1`` gives ``R_i − V_it``. As ``V`` is of earlier steps and of the tokens before ``t``, the gradient is then
    unbiased; less ``λ`` trades bias for variance.

    Degenerate cases: at the first step ``V = 0``. Groups of equal rewards have advantages. Where a batch is used more
    than once, ``V`` has seen it from the second time on.

    Args:
        trace: ``λ`` of GAE; below 1 biased.
        decay: what the moving average keeps at a step.
        ridge: penalty on ``‖w‖²``, over the mean square of a hidden unit.
    """

    per_token = True

    def __init__(self, trace: Share = 1.0, decay: Decay = 0.9, ridge: Positive = 1e-2):
        self.trace, self.decay, self.ridge = trace, decay, ridge
        self.moments: Tensor | None = None  # Σ x xᵀ with x = (h, 1, R), float64 [D + 2, D + 2]
        self.studied: Tensor | None = None  # of this step, on this rank
        self.solution: Tensor | None = None  # (w, c)

    @property
    def words(self) -> str:
        return "value of a linear function of the hidden states, token by token (GAE)"

    def __call__(self, groups: Groups) -> Tensor:
        assert groups.tokens is not None
        tokens, values = groups.tokens, self.values(groups.tokens)
        following = values.roll(-1)
        following[tokens.lengths.cumsum(0) - 1] = groups.rewards.flatten().to(values)
        advantages = tokens.by_position(following - values)  # δ_it, and 0 after the end
        for t in reversed(range(advantages.shape[1] - 1)):
            advantages[:, t] += self.trace * advantages[:, t + 1]
        return advantages[tokens.present].to(groups.rewards.dtype)

    def values(self, tokens: ResponseTokens) -> Tensor:
        """``V_it``, float64 [n]."""
        if self.solution is None:
            return torch.zeros_like(tokens.logs)
        return _features(tokens) @ self.solution.to(tokens.logs)

    def live(self, groups: Groups) -> Tensor:
        return torch.ones(len(groups.rewards), dtype=torch.bool)

    def study(self, groups: Groups) -> None:
        assert groups.tokens is not None
        rewards = groups.tokens.spread(groups.rewards.flatten().to(groups.tokens.logs))
        rows = torch.cat([_features(groups.tokens), rewards[:, None]], 1)
        product = rows.mT @ rows
        self.studied = product if self.studied is None else self.studied + product

    def learn(self, groups: Groups, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> None:
        if self.studied is None:
            return
        step = (1 - self.decay) * reduce(self.studied)
        self.moments = step if self.moments is None else self.decay * self.moments.to(step) + step
        self.studied, self.solution = None, self.solve(self.moments)

    def forget(self) -> None:
        self.studied = None

    def solve(self, moments: Tensor) -> Tensor:
        """``(w, c)`` of least squared error, ``c`` being free of the penalty, float64 [D + 1]."""
        gram, targets = moments[:-1, :-1], moments[:-1, -1]
        penalty = (self.ridge * gram.diag()[:-1].mean()).repeat(len(targets))
        penalty[-1] = 0
        return torch.linalg.solve(gram + penalty.diag(), targets)

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self.moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments = state["moments"]
        self.solution = None if self.moments is None else self.solve(self.moments)


def _features(tokens: ResponseTokens) -> Tensor:
    """``(h, 1)``, float64 [n, D + 1]."""
    assert tokens.hidden is not None
    return torch.nn.functional.pad(tokens.hidden.double(), (0, 1), value=1.0)
