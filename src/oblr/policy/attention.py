"""Attention of packed sequences on a GPU: flash attention, told where sequences begin instead of given a mask.

transformers' own choice for packed rows, a mask [R, 1, L, L], leaves scaled_dot_product_attention neither its flash
kernel nor its shared key and value heads. Elsewhere it stays the choice; both answer to the same oracle.
"""

import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PretrainedConfig

from oblr.batch.packing import PackedBatch
from oblr.errors import SettingError
from oblr.gradnorm.precision import autocast

SDPA, VARLEN = "sdpa", "varlen"
#: What a model may ask of its attention that the kernel does not do.
UNKNOWN = ("softcap", "s_aux", "position_bias")


def choose_attention(config: PretrainedConfig, gpu: bool, dtype: torch.dtype) -> str:
    """The attention of a policy that computes in ``dtype``, by its name in transformers."""
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    flash = gpu and dtype == torch.bfloat16 and head_size % 8 == 0 and head_size <= 256
    shares_heads = "enable_gqa" in inspect.signature(varlen_attn).parameters  # torch 2.12 and later
    return VARLEN if flash and shares_heads else SDPA


def boundaries(attention: str | None, packed: PackedBatch) -> dict[str, Any]:
    """What a model of this attention is given besides the tokens of ``packed``, by transformers' names for it."""
    if attention != VARLEN:
        return {}
    return {"cu_seq_lens_q": packed.bounds, "max_length_q": packed.longest}


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence, as transformers' layers call it.

    Args:
        query: [R, H, L, d].  key, value: [R, K, L, d] with K a divisor of H.
        sliding_window: how many tokens back a token sees, itself included; None: all.
        cu_seq_lens_q: int32; where sequences begin among the R·L tokens, and their end.
        max_length_q: tokens of the longest.

    Returns:
        [R, L, H, d], and no weights.

    Raises:
        SettingError: the model wants what the kernel does not do, or keeps the boundaries from it.
    """
    strange = [name for name in UNKNOWN if others.get(name) is not None]
    if strange or attention_mask is not None or cu_seq_lens_q is None:
        asks = ", ".join(strange) or ("a mask" if attention_mask is not None else "attention without boundaries")
        raise SettingError("policy.attention", f"{type(module).__name__} asks for {asks}", f"set it to {SDPA}")
    rows, _, length, _ = query.shape
    q, k, v = (autocast(x).transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    bounds = cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    out = cast(Tensor, varlen_attn(q, k, v, *bounds, scale=scaling, window_size=window, enable_gqa=True))
    return out.unflatten(0, (rows, length)), None


AttentionInterface.register(VARLEN, varlen_attention)
