"""A learnt value of every state, as in PPO (Schulman et al. 2017, arXiv 1707.06347)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.errors import SettingError
from oblr.types import ResponseTokens


class ValueBaseline(Baseline):
    """``A_it = Σ_{s≥t} λ^(s−t) δ_is``, ``δ_it = V_i,t+1 − V_it``, ``V`` after the end being ``R_i`` (arXiv 1506.02438).

    ``V_it = ⟨w, h_it⟩ + c`` reads the reward to expect from what the policy's own head sees before token ``t``. It is a
    ridge regression on a moving average over steps: no gradient reaches the policy, no learning rate is to be tuned,
    and no second network is to be kept. Rewards come at the end and are not discounted.

    ``λ = 1`` gives ``R_i − V_it``. As ``V`` is of earlier steps and of the tokens before ``t``, the gradient is then
    unbiased; less ``λ`` trades bias for variance.

    Degenerate cases: at the first step ``V = 0``. Groups of equal rewards have advantages.

    Args:
        trace: ``λ`` in [0, 1].
        decay: of the moving average, in [0, 1).
        ridge: penalty on ``‖w‖²``, relative to the mean square of a hidden unit; positive.

    Raises:
        SettingError: a setting out of its range.
    """

    per_token = True

    def __init__(self, trace: float = 1.0, decay: float = 0.9, ridge: float = 1e-2):
        for name, value, fits in (
            ("trace", trace, 0 <= trace <= 1),
            ("decay", decay, 0 <= decay < 1),
            ("ridge", ridge, ridge > 0),
        ):
            if not fits:
                raise SettingError(f"baseline.{name}", f"{value} is out of range", "see its comment in conf/baseline")
        self.trace, self.decay, self.ridge = trace, decay, ridge
        self.moments: Tensor | None = None  # Σ x xᵀ with x = (h, 1, R), float64 [D + 2, D + 2]
        self.studied: Tensor | None = None  # of this step, on this rank
        self.solution: Tensor | None = None  # (w, c)

    def __call__(self, groups: Groups) -> Tensor:
        assert groups.tokens is not None
        tokens, rewards = groups.tokens, self.token_rewards(groups)
        values = self.values(tokens)
        following = torch.where(_last(tokens), rewards, values.roll(-1))
        return discounted_sums(following - values, tokens, self.trace).float()

    def values(self, tokens: ResponseTokens) -> Tensor:
        """``V_it``, float64 [n]."""
        if self.solution is None:
            return torch.zeros_like(tokens.logs)
        weights = self.solution.to(tokens.logs.device)
        return _features(tokens) @ weights

    def token_rewards(self, groups: Groups) -> Tensor:
        """``R_i`` of each token's response, float64 [n]."""
        assert groups.tokens is not None
        return groups.rewards.flatten().to(groups.tokens.logs)[groups.tokens.sequences]

    def live(self, groups: Groups) -> Tensor:
        return torch.ones(len(groups.rewards), dtype=torch.bool)

    def study(self, groups: Groups) -> None:
        assert groups.tokens is not None
        rows = torch.cat([_features(groups.tokens), self.token_rewards(groups)[:, None]], 1)
        product = rows.mT @ rows
        self.studied = product if self.studied is None else self.studied + product

    def learn(self, groups: Groups, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> None:
        if self.studied is None:
            return
        step = reduce(self.studied)
        kept = torch.zeros_like(step) if self.moments is None else self.decay * self.moments.to(step.device)
        self.moments, self.studied = kept + (1 - self.decay) * step, None
        self.solve()

    def solve(self) -> None:
        assert self.moments is not None
        gram, targets = self.moments[:-1, :-1], self.moments[:-1, -1]
        size = len(gram) - 1
        penalty = torch.ones_like(targets)
        penalty[-1] = 0  # none on the constant
        scale = gram.diag()[:size].mean()
        self.solution = torch.linalg.solve(gram + (self.ridge * scale * penalty).diag(), targets)

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self.moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments = state["moments"]
        if self.moments is not None:
            self.solve()


def _features(tokens: ResponseTokens) -> Tensor:
    """``(h, 1)``, float64 [n, D + 1]."""
    assert tokens.hidden is not None
    return torch.nn.functional.pad(tokens.hidden.double(), (0, 1), value=1.0)


def _last(tokens: ResponseTokens) -> Tensor:
    """bool [n]: the tokens that end a response."""
    return tokens.sequences != torch.nn.functional.pad(tokens.sequences[1:], (0, 1), value=-1)


def discounted_sums(values: Tensor, tokens: ResponseTokens, discount: float) -> Tensor:
    """``Σ_{s≥t} discount^(s−t) x_s`` over the rest of each response, float64 [n]."""
    sums = torch.zeros_like(values)
    longest = int(tokens.lengths.max())
    starts = tokens.lengths.cumsum(0) - tokens.lengths
    running = values.new_zeros(len(tokens.lengths))
    for position in reversed(range(longest)):
        inside = position < tokens.lengths
        at = (starts + position)[inside]
        running[inside] = values[at] + discount * running[inside]
        sums[at] = running[inside]
    return sums
