"""The importance-weighted policy gradient of the paper (arXiv 2511.23310)."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.errors import SettingError
from oblr.kinds import LARGEST, Ge, Le, checked
from oblr.losses.base import Normalise, Surrogate

Ratio = Literal["sequence", "token", "none"]
Cap = Annotated[float, Ge(1), Le(LARGEST)]


@checked("loss")
class PolicyGradientLoss(Surrogate):
    """``f_it = ρ``, the importance ratio that ``ratio`` names, or ``min(ρ, C)``.

    ``sequence``: ``ρ_i = π(o_i|q)/μ(o_i|q)``, the paper's. Unbiased, and of a variance that grows exponentially with
    length and staleness. ``token``: ``ρ_it = π(o_it|q, o_i,<t)/μ(o_it|q, o_i,<t)`` of the token alone. It leaves out
    how much likelier the policy makes the tokens before and after: biased, the gradient of a surrogate that is right to
    first order in ``π − μ``, PPO's before it clips. ``none``: 1, as if the rollouts were the policy's own.

    The cap is truncated importance sampling (Ionides 2008; ``ρ̄`` of V-trace, arXiv 1802.01561): a bias, against a few
    large ratios that make up the whole gradient. Responses above it still count ``C`` times; PPO's clipping drops them.

    Engine and policy of the same weights round differently, and a ratio of sequences adds that up too: in bfloat16
    :func:`oblr.commands.checks.check_loss` refuses it where it would be little else.

    Degenerate cases: on-policy all are 1. Without a cap a sequence ratio above e^709 overflows.

    Args:
        ratio: ``ρ``, the importance ratio: of responses, of single tokens, or none.
        truncate: ``C``, the largest ratio; less than 1 would change on-policy gradients; None: unbounded.

    Raises:
        SettingError: a cap on no ratio.
    """

    def __init__(self, ratio: Ratio = "sequence", truncate: Cap | None = None, normalise: Normalise = "none"):
        super().__init__(normalise)
        if truncate is not None and ratio == "none":
            raise SettingError("loss.truncate", "there is no ratio to truncate", "choose loss.ratio, or null")
        self.ratio, self.truncate = ratio, truncate
        self.per_token = ratio == "token"

    @property
    def name(self) -> str:
        cap = "" if self.truncate is None else f", at most {self.truncate:g}"
        ratios = {"none": "no importance ratio", "token": f"token ratios{cap}", "sequence": f"sequence ratios{cap}"}
        return f"policy gradient, {ratios[self.ratio]}"

    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        if self.ratio == "none":
            return torch.ones_like(tokens.behaviour)
        weights = (tokens.logs if self.ratio == "token" else tokens.sequence_logs).exp()
        return weights.clamp(max=self.truncate) if self.truncate is not None else weights
