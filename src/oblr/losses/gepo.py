"""Group expectation policy optimization (Zhang et al. 2025, arXiv 2508.17850)."""

from torch import Tensor

from oblr.batch.types import ResponseTokens
from oblr.kinds import NonNegative, checked
from oblr.losses.base import Normalise, Surrogate
from oblr.losses.clip import clipped


@checked("loss")
class GEPOLoss(Surrogate):
    """``f_i = p_i / Ê[m]`` with ``Ê[m] = Σ_j m_j² / Σ_j m_j`` over the group, ``p`` of the policy, ``m`` of behaviour.

    The ratio's denominator is the group's, so that one response that the behaviour policy found unlikely cannot make it
    explode. The gradient goes through ``p_i`` alone. The paper writes ``p_i = π(o_i|q)``; its authors' code takes the
    mean of the tokens' log-probabilities, ``p_i = π(o_i|q)^(1/|o_i|)`` and ``m_i`` likewise, and so does this: of
    the products themselves the likeliest response would have all the weight. As in ``gspo``, the gradient
    ``p_i (1/|o_i|) Σ_t ∇θ log π`` has one ``1/|o_i|``, that of ``normalise: response``.

    Biased, on-policy too: there ``f_i = m_i / Ê[m]``, whose mean under the weights ``m_j / Σ m`` is 1 and whose plain
    mean is not above 1. Responses of equal likelihood have the ``f`` of ``gspo``; so has a group of one.

    Args:
        clip: ``ε``, how far from 1 a response is dropped, as by PPO by the sign of the advantage; None: none is. The
            paper argues against dropping any; the authors' code has TRL's default of 0.2.
    """

    def __init__(self, clip: NonNegative | None = None, normalise: Normalise = "response"):
        super().__init__(normalise)
        self.clip, self.signed = clip, clip is not None

    @property
    def name(self) -> str:
        return "policy gradient, likelihoods over the group's expectation (GEPO)"

    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        behaviour = tokens.behaviour / tokens.lengths
        groups = behaviour.view(-1, tokens.group_size)
        expectations = (2 * groups).logsumexp(1) - groups.logsumexp(1)
        own = behaviour + tokens.sequence_logs / tokens.lengths
        weights = (own.view_as(groups) - expectations[:, None]).exp().flatten()
        return weights if self.clip is None else clipped(weights, tokens, advantages, self.clip, self.clip)
