"""Importance ratios up to their effective sample size, in place of clipping (arXiv 2605.12380; P3O, 1905.01756)."""

from typing import Literal

import torch
from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.kinds import checked
from oblr.losses.base import Normalise, Surrogate


@checked("loss")
class ESSLoss(Surrogate):
    """``f = min(ρ, ESS)``, with ``ESS = (Σρ)²/(m Σρ²)`` of m ratios that stand together, at most 1.

    Ratios that are all alike count as they are, up to 1; the more unlike they are, the less the large ones count, and
    the whole gradient shrinks with them. None is dropped, whatever the sign of the advantage, and there is no bound to
    tune. ``sequence``: ``ρ_i`` of responses, with the other responses of the group. ``token``: ``ρ_it`` of tokens, with
    the other tokens of the response.

    The paper takes the ratios of a whole batch together, which a step with one pass does not know when it weighs the
    first of them, and adds a KL penalty of weight ``1 − ESS``: see ``kl``. Biased off-policy, by the cap. On-policy
    ``f = 1``.

    Args:
        ratio: ``ρ``, the importance ratio: of responses, or of single tokens.
    """

    def __init__(self, ratio: Literal["sequence", "token"] = "sequence", normalise: Normalise = "none"):
        super().__init__(normalise)
        self.ratio = ratio
        self.per_token = ratio == "token"

    @property
    def name(self) -> str:
        return f"policy gradient, {self.ratio} ratios up to their effective sample size"

    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        if self.per_token:
            logs, together, members = tokens.logs, tokens.sequences, tokens.lengths
        else:
            logs = tokens.sequence_logs
            together = torch.arange(len(logs), device=logs.device) // tokens.group_size
            members = torch.full((len(logs) // tokens.group_size,), tokens.group_size, device=logs.device)
        largest = logs.new_zeros(len(members)).scatter_reduce(0, together, logs, "amax", include_self=False)
        ratios = (logs - largest[together]).exp()  # whose squares do not overflow
        sums, squares = (ratios.new_zeros(len(members)).index_add(0, together, r) for r in (ratios, ratios.square()))
        return logs.exp().minimum((sums.square() / (members * squares))[together])
