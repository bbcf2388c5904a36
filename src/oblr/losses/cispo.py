"""Clipped importance weights of tokens that are never dropped (MiniMax-M1, arXiv 2506.13585)."""

from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.kinds import NonNegative, checked
from oblr.losses.base import Normalise, Surrogate


@checked("loss")
class CISPOLoss(Surrogate):
    """The gradient of ``sg[clip(ρ_it, 1 − ε_low, 1 + ε_high)] A_i log π(o_it|q, o_i,<t)`` with the tokens' own ratios.

    ``f_it`` is the clipped ratio, a weight and no function of ``θ`` (``sg``): tokens outside the bounds, which PPO
    drops, keep a bounded say. MiniMax-M1 sets no lower bound (``ε_low ≥ 1``), does not give its ``ε_high``, and takes
    ``normalise: group``; the cap of 5 is ScaleRL's (arXiv 2510.13786).

    Biased off-policy. Without a lower bound it is ``policy_gradient`` with token ratios truncated at ``1 + ε_high``.
    On-policy ``f = 1``.

    Args:
        clip_low: ``ε_low``, how far below 1 a ratio is clipped.
        clip_high: ``ε_high``, how far above 1 a ratio is clipped.
    """

    per_token = True

    def __init__(self, clip_low: NonNegative = 1.0, clip_high: NonNegative = 4.0, normalise: Normalise = "none"):
        super().__init__(normalise)
        self.clip_low, self.clip_high = clip_low, clip_high

    @property
    def name(self) -> str:
        return f"policy gradient, token ratios capped to [{1 - self.clip_low:g}, {1 + self.clip_high:g}] (CISPO)"

    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        return tokens.logs.exp().clamp(1 - self.clip_low, 1 + self.clip_high)
