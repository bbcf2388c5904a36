"""Importance ratios within a band, and nothing outside it: IcePop (Ling Team 2025, arXiv 2510.18855)."""

from typing import Annotated, Literal

from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.kinds import LARGEST, Ge, Le, Share, checked
from oblr.losses.base import Normalise, Surrogate


@checked("loss")
class BandLoss(Surrogate):
    """``f_it = ρ`` where ``low ≤ ρ ≤ high``, and 0 elsewhere, whatever the sign of the advantage.

    ``token``: IcePop's mask, by the tokens' own ratios ``ρ_it``. ``sequence``: a response whose ``ρ_i`` is outside is
    left out as a whole. What lies far outside is as likely an engine that computes
    otherwise as a policy that has moved, and a cap would still count it ``high`` times: see ``policy_gradient`` with
    ``truncate``, which keeps all, and ``ppo_clip``, which keeps what the advantage would bring back.

    Biased off-policy: by the mask, and with ``token`` by what a token's own ratio leaves out. Degenerate cases:
    on-policy ``f = 1``; what is all masked has neither gradient nor weight in a baseline.

    Args:
        ratio: ``ρ``, the importance ratio that is looked at and counts: of single tokens, or of responses.
        low: smallest ratio that counts.
        high: largest ratio that counts.
    """

    def __init__(
        self,
        ratio: Literal["token", "sequence"] = "token",
        low: Share = 0.5,
        high: Annotated[float, Ge(1), Le(LARGEST)] = 5.0,
        normalise: Normalise = "none",
    ):
        super().__init__(normalise)
        self.ratio, self.low, self.high = ratio, low, high
        self.per_token = ratio == "token"

    @property
    def name(self) -> str:
        return f"policy gradient, {self.ratio} ratios within [{self.low:g}, {self.high:g}] (IcePop)"

    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        weights = (tokens.logs if self.per_token else tokens.sequence_logs).exp()
        return weights.masked_fill((weights < self.low) | (weights > self.high), 0.0)
