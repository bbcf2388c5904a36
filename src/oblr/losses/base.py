"""What a loss is: its gradient, said by the factor that each response token's score is given."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from oblr.errors import SettingError

Normalise = Literal["none", "response", "group"]


@dataclass(frozen=True)
class Ratios:
    """How much likelier the policy finds the responses of complete groups than the behaviour policy that drew them.

    Attributes:
        logs: ``log π(o_t|q, o_<t) − log μ(o_t|q, o_<t)`` of every response token, float64 [n].
        energy: squared norm of the gradient of ``log π(o_t|q, o_<t)`` with respect to the logits,
            ``1 − 2π(o_t) + Σ_v π(v)²``, float64 [n].
        sequences: index of the token's response, int64 [n]; tokens come in the order of their responses.
        behaviour: ``log μ(o_i|q)``, summed over tokens, float64 [S].
        lengths: response tokens, at least one, int64 [S].
        group_size: G; responses come group by group, S = groups · G.
    """

    logs: Tensor
    energy: Tensor
    sequences: Tensor
    behaviour: Tensor
    lengths: Tensor
    group_size: int

    @cached_property
    def sequence_logs(self) -> Tensor:
        """``log π(o_i|q) − log μ(o_i|q)``, float64 [S]."""
        return torch.zeros_like(self.behaviour).index_add_(0, self.sequences, self.logs)

    def spread(self, values: Tensor) -> Tensor:
        """``values`` of the responses [S] given to each of their tokens [n]; those of tokens stay as they are."""
        return values if len(values) == len(self.logs) else values[self.sequences]


class Loss(ABC):
    """A loss whose gradient is ``g_q = (1/G) Σ_i A_i z_i Σ_t f_it ∇θ log π(o_it|q, o_i,<t)``.

    The factors ``f`` are constants of the gradient (importance ratios, clipped or masked), the ``z`` normalise lengths.
    On-policy ``f = 1``: losses differ in what they make of stale rollouts. Only ``gepo``, which weighs the likelier
    responses of a group up, and ``capo``, which masks tokens, are something else even then.

    Args:
        normalise: ``z_i``: ``none`` 1, the paper's; ``response`` ``1/|o_i|`` (GRPO), which is biased towards short
            right and long wrong responses; ``group`` ``G/Σ_j |o_j|`` (DAPO's token mean), which is not a constant of
            the group either once the own length enters.

    Attributes:
        per_token: whether ``f`` differs between the tokens of a response.
        signed: whether it depends on the advantages: on their signs, in ``capo`` on their sizes too.

    Raises:
        SettingError: unknown normalisation.
    """

    per_token: bool = False
    signed: bool = False

    def __init__(self, normalise: Normalise = "none"):
        if normalise not in get_args(Normalise):
            raise SettingError("loss.normalise", f"{normalise!r} is unknown", f"use one of {get_args(Normalise)}")
        self.normalise = normalise

    @abstractmethod
    def factors(self, ratios: Ratios, advantages: Tensor | None = None) -> Tensor:
        """``f``, float64: of every token [n] if ``per_token``, of every response [S] otherwise.

        Args:
            advantages: ``A_i`` [S], or [n] where the baseline's differ from token to token; the ``f`` of a ``signed``
                loss then do too, and are [n]. Without them, which is how the weights of the baseline are found,
                nothing is clipped that only one sign would have clipped.
        """

    def length_factors(self, lengths: Tensor) -> Tensor:
        """``z_i``, float64 [N, G], from the numbers of response tokens [N, G]."""
        if self.normalise == "response":
            return 1 / lengths.double()
        if self.normalise == "group":
            return (1 / lengths.double().mean(1, keepdim=True)).expand(lengths.shape)
        return torch.ones_like(lengths, dtype=torch.float64)
