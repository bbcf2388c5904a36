"""Optimal token baseline from the logits (arXiv 2602.07078)."""

import torch
from torch import Tensor

from oblr.baselines.base import Baseline, Groups


class OTBBaseline(Baseline):
    """``A_it = R_i − Σ_{j≠i} W_jt R_j / Σ_{j≠i} W_jt`` with ``W_jt = Σ_{s≤t} (1 − 2π_js + Σ_v π_js(v)²)``.

    The reward multiplies the gradient up to a token; the squared norm of that gradient is stood for by the energy of
    the logits' gradients so far, which costs no backward pass. Responses that have ended before ``t`` take no part.

    Unbiased: ``b_it`` depends on the other responses and on ``t`` alone. The paper includes the own one (``pooled``).

    Degenerate cases: where no other response is that long, all others take part with their final ``W``. Where the
    ``W`` are all zero, that is, every token was certain, the plain mean is taken. A group of equal rewards has zero
    advantages.

    Args:
        pooled: whether the mean contains the own sample, as published; biased.
    """

    leave_one_out = True
    per_token = True

    def __init__(self, pooled: bool = False):
        self.pooled = pooled

    @property
    def words(self) -> str:
        whose = "all responses of the group" if self.pooled else "the other responses of the group"
        return f"mean reward of {whose}, at each token weighted by the energy of their logits so far (OTB)"

    def __call__(self, groups: Groups) -> Tensor:
        assert groups.tokens is not None
        tokens, size = groups.tokens, groups.rewards.shape[1]
        energy = tokens.by_position(tokens.energy).cumsum(1).unflatten(0, (-1, size))  # W_jt, [n, G, T]
        present = tokens.present.unflatten(0, (-1, size)).to(energy)
        rewards = groups.rewards.to(energy)[..., None]
        used = torch.ones(size, size).to(energy)  # of i and j
        if not self.pooled:
            used.fill_diagonal_(0)

        baselines = torch.full_like(energy, torch.nan)
        for weights in (energy * present, present, energy, torch.ones_like(energy)):
            means = (used @ (weights * rewards)) / (used @ weights)  # 0/0 where no weight is left
            baselines = torch.where(baselines.isnan(), means, baselines)
        return (rewards - baselines).flatten(0, 1)[tokens.present].to(groups.rewards.dtype)
