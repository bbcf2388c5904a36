"""The policy as it was before training, which a KL penalty keeps the policy near."""

from collections.abc import Sequence

import torch
from torch import Tensor

from oblr.batch.packing import PackedBatch
from oblr.batch.types import ResponseTokens
from oblr.losses.kl import KLPenalty
from oblr.policy.model import PolicyModel


class Reference:
    """A frozen model and the penalty. No module: neither optimizer nor checkpoint has anything to do with it.

    Args:
        model: on the policy's device, and sharded as the policy is.
    """

    def __init__(self, model: PolicyModel, kl: KLPenalty):
        self.model, self.kl = model.requires_grad_(False).eval(), kl

    @torch.no_grad()
    def logprobs(self, packed: PackedBatch) -> Tensor:
        """Of the response tokens, float32 [n]."""
        logprobs = self.model(packed).logprobs
        self.model.rest()
        return logprobs

    def reward_penalties(self, parts: Sequence[PackedBatch]) -> Tensor:
        """What the reward of each response loses, float64 [S]."""
        penalties = []
        for packed in parts:
            segments = packed.target_segments
            own = (packed.behaviour_logprobs, self.logprobs(packed))
            penalties.append(self.kl.reward_penalty(*own, segments.ids, segments.count))
        return torch.cat(penalties)

    def token_coefficients(self, parts: Sequence[PackedBatch], tokens: ResponseTokens) -> Tensor:
        """What the coefficient of each token loses, before the division by G, float64 [n]."""
        behaviour = torch.cat([packed.behaviour_logprobs[packed.order] for packed in parts])
        reference = torch.cat([self.logprobs(packed)[packed.order] for packed in parts])
        return self.kl.token_coefficients(tokens.logs + behaviour, reference)
