"""PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347), as GRPO and DAPO use it."""

from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.kinds import NonNegative, checked
from oblr.losses.base import Normalise, Surrogate
from oblr.losses.clip import clipped


@checked("loss")
class PPOClipLoss(Surrogate):
    """The gradient of ``min(ρ_it A_i, clip(ρ_it, 1 − ε_low, 1 + ε_high) A_i)`` with the tokens' own ratios.

    ``f_it = ρ_it``, or 0 where ``A_i > 0`` and ``ρ_it > 1 + ε_high`` or ``A_i < 0`` and ``ρ_it < 1 − ε_low``: a token
    that has moved that far already is dropped. DAPO (arXiv 2503.14476) sets ``ε_high > ε_low``, which leaves unlikely
    tokens room to grow. GRPO (arXiv 2402.03300) is ``normalise: response``, DAPO ``normalise: group``.

    Biased off-policy, by the token ratios and by the clipping. Degenerate cases: on-policy ``f = 1``. A negative
    advantage bounds nothing from above: ``ρ_it`` may be as large as it likes.

    Args:
        clip_low: ``ε_low``, how far below 1 a ratio is clipped.
        clip_high: ``ε_high``, how far above 1 a ratio is clipped.
    """

    per_token = True
    signed = True

    def __init__(self, clip_low: NonNegative = 0.2, clip_high: NonNegative = 0.28, normalise: Normalise = "none"):
        super().__init__(normalise)
        self.clip_low, self.clip_high = clip_low, clip_high

    @property
    def name(self) -> str:
        return f"PPO's surrogate, token ratios clipped to [{1 - self.clip_low:g}, {1 + self.clip_high:g}]"

    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        return clipped(tokens.logs.exp(), tokens, advantages, self.clip_low, self.clip_high)
