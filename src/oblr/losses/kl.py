"""A KL penalty towards a reference policy, by one of Schulman's estimators ("Approximating KL divergence", 2020)."""

from typing import Literal

import torch
from torch import Tensor

from oblr.kinds import NonNegative, checked

Estimator = Literal["k1", "k2", "k3"]


@checked("kl")
class KLPenalty:
    """``J − β KL(π‖ref)``, of sequences, as far as the estimator goes; ``ref`` does not move.

    ``k1`` shapes the reward, as PPO does in RLHF (arXiv 1909.08593): ``R'_i = R_i − β Σ_t log μ(o_it)/ref(o_it)``, once
    per batch, with the log-probabilities of the behaviour policy. As ``E[∇θ log π] = 0``, what remains of
    ``∇θ E[log π(o)/ref(o)]`` is ``E[log(π/ref) ∇θ log π]``: on-policy the policy gradient of ``R'`` is that of
    ``J − β KL(π‖ref)``, and baseline and SNR hold with ``R'`` in place of ``R``. On stale rollouts the penalty is
    ``μ``'s.

    ``k2`` and ``k3`` add ``−(β/G) Σ_i Σ_t κ_it ∇θ log π(o_it|q, o_i,<t)`` to the gradient of a group:

        k2   κ = log(π/ref)    the gradient of ½ (log π/ref)²
        k3   κ = 1 − ref/π     the gradient of ref/π − 1 − log(ref/π), GRPO's (arXiv 2402.03300)

    Both see one token and not how it changes the divergence of those that follow: less noise, and a bias as gradients
    of the sequences' divergence (arXiv 2506.09477). On-policy, and given what comes before the token, k2 is on average
    the gradient of ``KL(π‖ref)``, k3 that of ``KL(ref‖π)``. They carry no importance ratio, as published. The loss's
    ``z_i`` is not theirs either, so that the same ``β`` means the same divergence; GRPO has it there too.

    Degenerate cases: ``π = ref`` gives no penalty by any. Where ``π`` goes to 0 and ``ref`` does not, κ of k3 goes to
    −∞ like ``−1/π``, that of k2 like ``log π``.

    Args:
        estimator: of the divergence: ``k1`` shapes rewards, the others the gradient.
        coefficient: ``β``, reward per nat.
    """

    def __init__(self, estimator: Estimator, coefficient: NonNegative):
        self.estimator, self.coefficient = estimator, coefficient

    @property
    def words(self) -> str:
        """The penalty in words, for the header of a report."""
        place = "in the reward" if self.shapes_reward else "of every token"
        return f"{self.coefficient:g} × KL to the first policy, {place} ({self.estimator})"

    @property
    def shapes_reward(self) -> bool:
        """Whether the penalty is part of the reward, and not of the tokens' coefficients."""
        return self.estimator == "k1"

    def reward_penalty(
        self, behaviour_logs: Tensor, reference_logs: Tensor, sequences: Tensor, n_sequences: int
    ) -> Tensor:
        """``β Σ_t log μ(o_t)/ref(o_t)``, to be taken from the reward, float64 [S]; 0 unless it ``shapes_reward``.

        Args:
            behaviour_logs, reference_logs: log-probabilities of the response tokens [n].
            sequences: index of the token's response, int64 [n].
            n_sequences: S.
        """
        penalty = torch.zeros(n_sequences, dtype=torch.float64, device=behaviour_logs.device)
        if not self.shapes_reward:
            return penalty
        logs = behaviour_logs.double() - reference_logs.double()
        return penalty.index_add_(0, sequences, logs, alpha=self.coefficient)

    def token_coefficients(self, policy_logs: Tensor, reference_logs: Tensor) -> Tensor:
        """``β κ_t``, to be taken from the tokens' coefficients, float64 [n]; 0 if it ``shapes_reward``.

        Args:
            policy_logs, reference_logs: log-probabilities of the response tokens [n]. No gradient goes through them.
        """
        logs = policy_logs.detach().double() - reference_logs.double()
        if self.shapes_reward:
            return torch.zeros_like(logs)
        return self.coefficient * (logs if self.estimator == "k2" else -(-logs).expm1())
