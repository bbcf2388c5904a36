"""A tiny random model of every causal type that transformers knows, from settings that most of them share.

A type may have layers of several kinds, some of them in few layers of a large model alone. What kinds there are is read
from its source (:func:`kinds`), and what a tiny model lacks of them is told (:func:`lacking`).
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.configuration_utils import ALLOWED_LAYER_TYPES

VOCABULARY, CONTEXT = 97, 64
#: By the names that configurations have for them.
WIDTHS = ("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "dim")
INNER = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads", "encoder_attention_heads")
PAIRS = ("num_key_value_heads", "num_kv_heads")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
ACTIVE = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts")
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
    **{"attention_types": [[["global", "local"], 1]], "window_size": 8, "first_k_dense_replace": 1},
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
#: Of ``layer_types``: one after the other, all that its source names.
NAMED = "named"
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"head_dim": OWN},
    {"layer_types": OWN},
    {"layer_types": NAMED},
    {"layer_types": NAMED, "head_dim": OWN},
    {"layer_types": OWN, "enable_moe_block": True, "is_moe": True},
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
    try:
        text = CONFIG_MAPPING[kind]().get_text_config()
    except StrictDataclassError as error:
        raise NotBuilt(f"it has no configuration of its own: {' '.join(str(error).split())[:120]}") from error
    shared = {**SIZES, **FACTORS, "enable_moe_block": OWN, "is_moe": OWN}
    known = {name: value for name, value in shared.items() if name in dir(type(text)) or name in vars(text)}
    for depth in DEPTHS:
        for variant in VARIANTS:
            chosen = {name: variant.get(name, value) for name, value in known.items()}
            chosen |= {name: value for name, value in variant.items() if name not in shared}
            if chosen.get("layer_types") == NAMED:
                chosen["layer_types"] = list(islice(cycle(layer_types(text)), depth))
            chosen |= {name: depth for name in LAYERS if name in known}
            chosen = {name: value for name, value in chosen.items() if value is not OWN}
            yield lambda chosen=chosen: settable(type(text), chosen)  # type: ignore[misc]


def layer_types(config: PretrainedConfig) -> list[str]:
    """Kinds of layers that the configuration or the model of this type names."""
    folder = Path(inspect.getfile(type(config))).parent
    source = "".join(path.read_text() for path in sorted(folder.glob("*.py")))
    return [name for name in ALLOWED_LAYER_TYPES if f'"{name}"' in source] or ["full_attention"]


def kinds(model: type[nn.Module]) -> set[type[nn.Module]]:
    """Classes of layers in the model's own file that its constructor, and theirs, may make."""
    module, found, ahead = sys.modules[model.__module__], set[type[nn.Module]](), [model]
    while ahead:
        one = ahead.pop()
        if one in found:
            continue
        found.add(one)
        source = textwrap.dedent(inspect.getsource(one.__init__))
        names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
        for value in (getattr(module, name, None) for name in names):
            made = value.values() if isinstance(value, dict) else [value]
            ahead += [c for c in made if inspect.isclass(c) and issubclass(c, nn.Module)]
    return {one for one in found if one.__module__ == model.__module__ and "FlashAttention" not in one.__name__}


def lacking(lm: PreTrainedModel) -> list[str]:
    """Names of the kinds of layers that models of this type may have, and this one has not."""
    there = {one for module in lm.modules() for one in type(module).__mro__}
    return sorted(one.__name__ for one in kinds(type(lm)) - there)


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

    Of those that can be built, the first of all that lack fewest kinds of layers.

    Raises:
        NotBuilt: there is none.
    """
    first, best, least = None, None, 0
    for configuration in configurations(kind):
        try:
            config = configuration()
            with torch.device("meta"):
                empty = AutoModelForCausalLM.from_config(config)
            if (size := sum(p.numel() for p in empty.parameters())) > MOST:
                raise NotBuilt(f"{size:,} parameters at the least")
            lacks = len(lacking(empty))
            if best is not None and lacks >= least:
                continue
            best, least = built(config, "sdpa" if getattr(type(empty), "_supports_sdpa", False) else "eager"), lacks
            if not lacks:
                break
        except Exception as error:
            first = first or error
    if best is None:
        raise NotBuilt(f"{type(first).__name__}: {' '.join(str(first).split())[:120]}") from first
    return best.train()


def built(config: PretrainedConfig, attention: str) -> PreTrainedModel:
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    for p in lm.parameters():
        p.data += 0.05 * torch.randn_like(p)
    with torch.no_grad():
        lm.eval()(torch.arange(3, 12)[None], use_cache=False).logits.sum().item()
    return lm
