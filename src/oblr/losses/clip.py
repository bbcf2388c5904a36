"""PPO's clipping (Schulman et al. 2017, arXiv 1707.06347): what it leaves of an importance ratio."""

from torch import Tensor

from oblr.batch.types import ResponseTokens


def clipped(factors: Tensor, tokens: ResponseTokens, advantages: Tensor | None, low: float, high: float) -> Tensor:
    """The gradient of ``min(ρA, clip(ρ, 1 − low, 1 + high) A)``, over ``A ∇θ log π``.

    That is ``ρ``, or 0 where the ratio has gone as far as the advantage may take it: ``A > 0`` and ``ρ > 1 + high``,
    ``A < 0`` and ``ρ < 1 − low``. Ratios at the bounds are not clipped.

    Args:
        factors: ``ρ``, float64 [n] or [S].
        advantages: [n] or [S]; without them nothing is clipped.

    Returns:
        float64, [S] if both are, [n] otherwise.
    """
    if advantages is None:
        return factors
    if len(factors) != len(advantages):
        factors, advantages = tokens.spread(factors), tokens.spread(advantages)
    beyond = (advantages > 0) & (factors > 1 + high) | (advantages < 0) & (factors < 1 - low)
    return factors.masked_fill(beyond, 0.0)
