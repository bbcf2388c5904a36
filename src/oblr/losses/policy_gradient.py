"""The importance-weighted policy gradient of the paper.

A loss is given by its gradient: the coefficient of each ``∇θ log π(o_t|q, o_<t)``. That is what the step needs, and
what the book-keeping of per-group gradients can use.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyGradientLoss:
    """``g_q = (1/G) Σ_i ρ_i A_i ∇θ log π(o_i|q)``, sequence log-probabilities summed over tokens.

    Args:
        importance: multiply by the sequence ratio ``ρ_i = π(o_i|q)/μ(o_i|q)``; False takes ``ρ_i = 1``.
    """

    importance: bool = True

    def sequence_ratios(self, ratios: Tensor) -> Tensor:
        """The ``ρ_i`` in use, from the measured ratios [N, G]."""
        return ratios if self.importance else torch.ones_like(ratios)

    def coefficients(self, advantages: Tensor, ratios: Tensor) -> Tensor:
        """``ρ_i A_i / G``, float64 [N, G]: the weight of each sequence's score in ``g_q``."""
        return self.sequence_ratios(ratios) * advantages / advantages.shape[1]
