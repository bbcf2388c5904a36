"""Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071)."""

from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.kinds import NonNegative, checked
from oblr.losses.base import Normalise, Surrogate
from oblr.losses.clip import clipped


@checked("loss")
class GSPOLoss(Surrogate):
    """The gradient of ``min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i)``, ``s_i = (π(o_i|q)/μ(o_i|q))^(1/|o_i|)``.

    ``∇θ s_i = s_i (1/|o_i|) Σ_t ∇θ log π(o_it|q, o_i,<t)``, so ``f_i = s_i``, or 0 where it is clipped. The ``1/|o_i|``
    belongs to ``s_i``, and GSPO has no other: it is the ``z_i`` of ``normalise: response``, which is why that is the
    default here. ``none`` is LUSPO (arXiv 2602.05261), which counts a response ``|o_i|`` times as much.

    The geometric mean of the token ratios is near 1 even where the ratio of sequences is not, and the bounds are
    accordingly narrow. Biased off-policy. Advantages that differ from token to token give GSPO-token (Section 4.3):
    each token is clipped by its own sign, all at the same ``s_i``. On-policy ``f = 1``.

    Args:
        clip_low: ``ε_low``, how far below 1 a ratio is clipped.
        clip_high: ``ε_high``, how far above 1 a ratio is clipped.
    """

    signed = True

    def __init__(self, clip_low: NonNegative = 3e-4, clip_high: NonNegative = 4e-4, normalise: Normalise = "response"):
        super().__init__(normalise)
        self.clip_low, self.clip_high = clip_low, clip_high

    @property
    def name(self) -> str:
        low, high = 1 - self.clip_low, 1 + self.clip_high
        return f"PPO's surrogate, mean ratio of a response clipped to [{low:g}, {high:g}] (GSPO)"

    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        means = (tokens.sequence_logs / tokens.lengths).exp()
        return clipped(means, tokens, advantages, self.clip_low, self.clip_high)
