"""Base class of losses: a surrogate objective, given by its factor of each response token's ∇ log π."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from oblr.batch.types import ResponseTokens

Normalise = Literal["none", "response", "group"]


class Surrogate(ABC):
    """An objective whose gradient is ``g_q = (1/G) Σ_i A_i z_i Σ_t f_it ∇θ log π(o_it|q, o_i,<t)``.

    The factors ``f`` are constants of the gradient (importance ratios, clipped or masked), the ``z`` normalise lengths.
    On-policy ``f = 1``: losses differ in what they make of stale rollouts. Only ``gepo``, which weighs the likelier
    responses of a group up, and ``capo``, which masks tokens, are something else even then.

    Args:
        normalise: ``z_i``, what a response's length does to its gradient: ``none`` 1, the paper's; ``response``
            ``1/|o_i|`` (GRPO), which is biased towards short right and long wrong responses; ``group``
            ``G/Σ_j |o_j|`` (DAPO's token mean), which is not a constant of the group either once the own length
            enters.

    Attributes:
        per_token: whether ``f`` differs between the tokens of a response.
        signed: whether it depends on the advantages: on their signs, in ``capo`` on their sizes too.
    """

    per_token: bool = False
    signed: bool = False

    def __init__(self, normalise: Normalise = "none"):
        self.normalise = normalise

    @property
    def words(self) -> str:
        """The loss in words, for the header of a report."""
        lengths = {"none": "", "response": ", over the length of each response", "group": ", over the mean length"}
        return f"{self.name}{lengths[self.normalise]}"

    @property
    def name(self) -> str:
        """In words, without what the lengths do."""
        return type(self).__name__

    @abstractmethod
    def factors(self, tokens: ResponseTokens, advantages: Tensor | None = None) -> Tensor:
        """``f``, float64: of every token [n] if ``per_token``, of every response [S] otherwise.

        Args:
            tokens: of complete groups; where ``per_token``, of any whole responses.
            advantages: ``A_i`` [S], or [n] where the baseline's differ from token to token; the ``f`` of a ``signed``
                loss then do too, and are [n]. Without them, which is how the baseline's weights of rewards are found,
                nothing is clipped that only one sign would have clipped.
        """

    def reward_weights(self, tokens: ResponseTokens, square_norms: Tensor) -> Tensor:
        """``‖z_i Σ_t f_it ∇θ log π_it‖²``, what the baseline weighs rewards with, float64 [S].

        Args:
            square_norms: ``‖Σ_t f_it ∇θ log π_it‖²`` if ``per_token``, ``‖∇θ log π(o_i|q)‖²`` otherwise, [S].
        """
        scale = self.response_factors(tokens)
        return (scale if self.per_token else scale * self.factors(tokens)).square() * square_norms

    def coefficients(self, tokens: ResponseTokens, advantages: Tensor, per_token: bool) -> Tensor:
        """``A_i z_i f_it / G`` of every token's ``∇θ log π``, float64 [n], if ``per_token``.

        Otherwise of every response [S]: of ``∇θ log π(o_i|q)``, or of ``Σ_t f_it ∇θ log π_it`` where ``f`` differs
        between its tokens.
        """
        scale = self.response_factors(tokens) / tokens.group_size
        if not per_token:
            return scale * advantages if self.per_token else scale * advantages * self.factors(tokens, advantages)
        parts = (scale, advantages, self.factors(tokens, advantages))
        scale, advantages, factors = (tokens.spread(part) for part in parts)
        return scale * advantages * factors

    def response_factors(self, tokens: ResponseTokens) -> Tensor:
        """``z_i`` [S]."""
        return self.length_factors(tokens.lengths.view(-1, tokens.group_size)).flatten()

    def length_factors(self, lengths: Tensor) -> Tensor:
        """``z_i``, float64 [N, G], from the numbers of response tokens [N, G]."""
        if self.normalise == "response":
            return 1 / lengths.double()
        if self.normalise == "group":
            return (1 / lengths.double().mean(1, keepdim=True)).expand(lengths.shape)
        return torch.ones_like(lengths, dtype=torch.float64)
