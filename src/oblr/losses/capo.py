"""Curvature-aware policy optimization (Melo, Abate & Gal 2025, arXiv 2510.00819)."""

from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.kinds import NonNegative, Positive, checked
from oblr.losses.base import Normalise, Surrogate
from oblr.losses.clip import clipped


@checked("loss")
class CAPOLoss(Surrogate):
    """PPO's clipped surrogate without the tokens whose own step would shift objective or policy too far.

    The paper's model is the output layer ``W``, logits ``W h``. Token ``t`` alone would move it by
    ``Δ = α A_t ∇_W log π(o_t)``, and with the gradient and the second derivatives of that layer's objective

        m_H = ⟨A_t ∇_W log π, Δ⟩ + ½ Δᵀ H Δ      objective shift, H = A_t ((e − π)(e − π)ᵀ − F) ⊗ h hᵀ
        m_F = ½ (⟨∇_W log π, Δ⟩)²                policy shift, the KL divergence to second order

    A token is kept if ``m_F < δ_F`` and ``|m_H| < δ_H``, and dropped otherwise. With ``E_t`` the squared norm of
    ``e − π`` (``ResponseTokens.energy``) and ``x_t = α‖h‖² |A_t| E_t`` this is ``m_F = ½ x²`` and
    ``m_H = |A_t| x + ½ A_t x²``.

    The paper's: the layer's model, both conditions token by token with the window on ``m_H`` that is symmetric as in
    the authors' runs, their thresholds, and the clipping of what is kept. Simplified:

    - ``Δ`` is a plain gradient step; the paper models Adam's, and finds plain steps as good for CAPO itself, not for
      its variants on Dr. GRPO and REINFORCE.
    - ``α‖h_t‖²`` is one number, ``step``: the last norm keeps ``‖h_t‖²`` nearly constant. The schedule knows its
      learning rate only after the gradient.
    - ``F`` is left out of ``H``. Its share of ``m_H`` is at most ``¼ α‖h‖² |A_t|`` of the first term, and far less for
      unlikely tokens, the likeliest to be masked.
    - The authors' GRPO divides by the tokens kept; ``normalise`` goes by all.

    The mask is a bias that no ratio explains, on-policy as well. Degenerate cases: ``A_t = 0`` and ``E_t = 0`` are
    always kept, and without advantages nothing is masked.

    Args:
        step: ``α‖h‖²``, learning rate times the squared norm of the output layer's inputs over the squared temperature;
            about ``α Σ_j γ_j²`` with the weights ``γ`` of the last RMSNorm.
        policy_shift: ``δ_F``, largest shift of the policy that a token may make alone, nats.
        objective_shift: ``δ_H``, largest shift of the objective that a token may make alone.
        clip_low: how far below 1 a ratio is clipped.
        clip_high: how far above 1 a ratio is clipped.
    """

    per_token = True
    signed = True

    def __init__(
        self,
        step: Positive,
        policy_shift: Positive = 1e-4,
        objective_shift: Positive = 1e-2,
        clip_low: NonNegative = 0.2,
        clip_high: NonNegative = 0.2,
        normalise: Normalise = "none",
    ):
        super().__init__(normalise)
        self.step, self.policy_shift, self.objective_shift = step, policy_shift, objective_shift
        self.clip_low, self.clip_high = clip_low, clip_high

    @property
    def name(self) -> str:
        return "PPO's surrogate without tokens that would shift it too far (CAPO)"

    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        weights = clipped(tokens.logs.exp(), tokens, advantages, self.clip_low, self.clip_high)
        if advantages is None:
            return weights
        objective, policy = self.shifts(tokens, advantages)
        return weights.masked_fill((policy >= self.policy_shift) | (objective.abs() >= self.objective_shift), 0.0)

    def shifts(self, tokens: ResponseTokens, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """``m_H`` and ``m_F`` of every token, float64 [n]."""
        advantages = tokens.spread(advantages).double()
        x = self.step * advantages.abs() * tokens.energy
        return advantages.abs() * x + advantages * x.square() / 2, x.square() / 2
