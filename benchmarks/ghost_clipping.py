"""Opacus's ghost clipping as a peer: per-sequence norms from one backward pass, the weighted update from another."""

from collections.abc import Callable

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor, nn
from transformers import PreTrainedModel


class GhostClipping:
    """Steps as in ``opacus.utils.fast_gradient_clipping_utils``, with coefficients of one's own.

    Args:
        lm: an untied Hugging Face model. Its RMSNorms become torch's, of the same formula, which is what Opacus knows.
    """

    def __init__(self, lm: PreTrainedModel):
        for name, module in list(lm.named_modules()):
            if type(module).__name__.endswith("RMSNorm"):
                parent, _, child = name.rpartition(".")
                norm = nn.RMSNorm(len(module.weight), eps=module.variance_epsilon)
                norm.weight = module.weight
                setattr(lm.get_submodule(parent), child, norm)
        self.lm = lm
        self.hooked = GradSampleModuleFastGradientClipping(lm, batch_first=True, loss_reduction="sum")

    def logprobs(self, input_ids: Tensor, first: Tensor, end: Tensor) -> Tensor:
        """Log-probability [B] of the tokens ``first`` [B] to ``end − 1`` [B] of each right-padded row [B, L]."""
        position = torch.arange(input_ids.shape[1])
        start = int(first.min()) - 1
        attended = (position < end[:, None]).long()
        hidden = self.lm.base_model(input_ids=input_ids, attention_mask=attended, use_cache=False).last_hidden_state
        logits = self.lm.get_output_embeddings()(hidden[:, start:-1])
        taken = logits.log_softmax(-1).gather(2, input_ids[:, start + 1 :, None]).squeeze(-1)
        scored = (position >= first[:, None]) & (position < end[:, None])
        return (taken * scored[:, start + 1 :]).sum(1)

    def update(self, logprobs: Callable[[], Tensor], coefficients: Callable[[Tensor], Tensor]) -> Tensor:
        """Leave ``Σ_i c_i ∇θ log π(o_i|q)`` in ``.grad``; returns the squared norms ``n_i`` that the ``c_i`` are of."""
        self.hooked.enable_hooks()
        per_sequence = logprobs()
        per_sequence.sum().backward(retain_graph=True)
        square_norms = self.hooked.get_norm_sample().square()
        self.lm.zero_grad()
        self.hooked.disable_hooks()
        (coefficients(square_norms) * per_sequence).sum().backward()
        return square_norms
