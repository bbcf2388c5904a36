"""Optimal token baseline from the logits (arXiv 2602.07078)."""

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.types import ResponseTokens


class OTBBaseline(Baseline):
    """``A_it = R_i − Σ_{j≠i} W_jt R_j / Σ_{j≠i} W_jt`` with ``W_jt = Σ_{s≤t} (1 − 2π_js + Σ_v π_js(v)²)``.

    The gradient up to a token is what its reward multiplies; its squared norm is stood for by the energy of the logits'
    gradients so far, which costs no backward pass. Responses that have ended before ``t`` take no part in ``b_it``.

    Unbiased: ``b_it`` depends on the other responses and on ``t`` alone. The paper includes the own one (``pooled``).

    Degenerate cases: where no other response is that long, all others take part with their final ``W``. Where the
    ``W`` are all zero, that is, every token was certain, the plain mean is taken. A group of equal rewards has zero
    advantages.

    Args:
        pooled: include the own sample, as published; biased.
    """

    leave_one_out = True
    per_token = True

    def __init__(self, pooled: bool = False):
        self.pooled = pooled

    def __call__(self, groups: Groups) -> Tensor:
        assert groups.tokens is not None
        tokens, size = groups.tokens, groups.rewards.shape[1]
        energy = cumulative_energy(tokens)  # [S, T]
        present = torch.arange(energy.shape[1], device=energy.device) < tokens.lengths[:, None]
        shape = (-1, 1, size, energy.shape[1])  # group, i, j, t
        used = torch.ones(size, size, dtype=torch.bool, device=energy.device)
        used = (used if self.pooled else ~used.diag().diag())[None, :, :, None]
        still = used & present.view(shape)
        still = torch.where(still.any(2, keepdim=True), still, used)
        weights = energy.view(shape) * still
        total = weights.sum(2, keepdim=True)
        share = torch.where(total > 0, weights / total, still / still.sum(2, keepdim=True))
        rewards = groups.rewards.to(energy)
        baselines = (share * rewards[:, None, :, None]).sum(2)  # [n, i, t]
        advantages = rewards[..., None] - baselines
        return advantages.flatten(0, 1)[present].float()


def cumulative_energy(tokens: ResponseTokens) -> Tensor:
    """``W_it``, float64 [S, T]; the final one beyond the end of a response."""
    starts = tokens.lengths.cumsum(0) - tokens.lengths
    positions = torch.arange(len(tokens.energy), device=tokens.energy.device) - starts[tokens.sequences]
    energy = tokens.energy.new_zeros(len(tokens.lengths), int(tokens.lengths.max()))
    energy[tokens.sequences, positions] = tokens.energy
    return energy.cumsum(1)
