"""Which token of a response its loss pulls at hardest."""

from typing import NamedTuple

import torch
from torch import Tensor


class Peaks(NamedTuple):
    """Of each response, see ``peak`` and ``peak_share`` of :class:`~oblr.statistics.log.Response`.

    Attributes:
        places: int64 [S]; 0 where nothing is pulled.
        shares: [S]; 0 where nothing is pulled.
    """

    places: Tensor
    shares: Tensor


def peaks(logprobs: Tensor, slopes: Tensor) -> Peaks:
    """By the chain rule: ``∂ℓ/∂z_t = ∂ℓ/∂(log π_t) · (1 − π_t)`` for a token's own logit ``z_t``.

    Args:
        logprobs: ``log π_t`` of the tokens [S, T].
        slopes: ``∂ℓ/∂(log π_t)`` [S, T], but for a factor of the response; 0 where there is no token.
    """
    squares = (slopes * -torch.expm1(logprobs)).square().masked_fill(slopes == 0, 0.0)
    top, places = squares.max(1)
    return Peaks(places, (top / squares.sum(1)).nan_to_num(0.0))
