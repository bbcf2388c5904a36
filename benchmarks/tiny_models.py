"""A tiny random model of every causal type that transformers knows, from settings that most of them share."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

VOCABULARY, CONTEXT = 97, 64
#: By the names that configurations have for them.
WIDTHS = ("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "dim")
INNER = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads", "encoder_attention_heads")
PAIRS = ("num_key_value_heads", "num_kv_heads")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
ACTIVE = ("num_experts_per_tok", "moe_topk", "moe_k")
SIZES: dict[str, Any] = {
    **dict.fromkeys(WIDTHS, 48),
    **dict.fromkeys(INNER, 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(LAYERS, 2),
    **dict.fromkeys(HEADS, 4),
    **dict.fromkeys(PAIRS, 2),
    **dict.fromkeys(POSITIONS, CONTEXT),
    **dict.fromkeys(EXPERTS, 4),
    **dict.fromkeys(ACTIVE, 2),
    **{"vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8},
    **{"head_dim": 12, "rotary_dim": 8, "sliding_window": 8, "n_group": 1, "topk_group": 1, "layer_types": None},
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
#: What would be 1, or off, by default, and would hide a mistake.
FACTORS = {
    **{"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.3},
    **{"logit_scale": 0.5, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 2.0},
    **{"scale_emb": 3.0, "scale_depth": 1.4, "dim_model_base": 12},
    **dict.fromkeys(("attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout", "residual_dropout"), 0.1),
}
#: Settings that some configurations cannot do without: others in their place, or ... for their own.
OWN: Any = ...
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"head_dim": OWN},
    {"layer_types": OWN},
    {"head_dim": 8, **dict.fromkeys(PAIRS, 4)},
    {"partial_rotary_factor": 0.5},
    dict.fromkeys(FACTORS, OWN),
)
DEPTHS = (2, 6)
MOST = 20_000_000


class NotBuilt(Exception):
    """No tiny model of this type; says why."""


def configurations(kind: str) -> Iterator[Callable[[], PretrainedConfig]]:
    """Constructors to try in turn."""
    text = CONFIG_MAPPING[kind]().get_text_config()
    known = {
        name: value for name, value in {**SIZES, **FACTORS}.items() if name in dir(type(text)) or name in vars(text)
    }
    for depth in DEPTHS:
        for variant in VARIANTS:
            chosen = {name: value for name, value in {**known, **variant}.items() if value is not OWN}
            chosen |= {name: depth for name in LAYERS if name in known}
            yield lambda chosen=chosen: settable(type(text), chosen)  # type: ignore[misc]


def settable(kind: type[PretrainedConfig], chosen: dict[str, Any]) -> PretrainedConfig:
    """Without those that this configuration works out for itself."""
    while True:
        try:
            return kind(**chosen)
        except AttributeError as error:
            found = re.search(r"property '(\w+)' of .* has no setter", str(error))
            if found is None or found[1] not in chosen:
                raise
            chosen = {name: value for name, value in chosen.items() if name != found[1]}


def tiny(kind: str) -> PreTrainedModel:
    """A random model whose own forward runs; all its parameters are away from their initial values.

    Raises:
        NotBuilt: there is none.
    """
    first = None
    for configuration in configurations(kind):
        try:
            config = configuration()
            with torch.device("meta"):
                empty = AutoModelForCausalLM.from_config(config)
            if (size := sum(p.numel() for p in empty.parameters())) > MOST:
                raise NotBuilt(f"{size:,} parameters at the least")
            attention = "sdpa" if getattr(type(empty), "_supports_sdpa", False) else "eager"
            torch.manual_seed(0)
            lm = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
            for p in lm.parameters():
                p.data += 0.05 * torch.randn_like(p)
            with torch.no_grad():
                lm.eval()(torch.arange(3, 12)[None], use_cache=False).logits.sum().item()
            return lm.train()
        except Exception as error:
            first = first or error
    raise NotBuilt(f"{type(first).__name__}: {' '.join(str(first).split())[:120]}") from first
