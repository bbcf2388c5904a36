"""A model type is called right only where its tiny model has every kind of layer that the type can have."""

import pytest
from tiny_models import kinds, lacking, tiny
from transformers import AutoModelForCausalLM

from models import judge


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        ("deepseek_v3", "DeepseekV3Experts"),
        ("glm_moe_dsa", "GlmMoeDsaExperts"),
        ("lfm2", "Lfm2ShortConv"),
        ("gemma4_text", "Gemma4TextExperts"),
    ],
)
def test_layers_that_few_layers_or_settings_bring_are_there(kind, layer):
    lm = tiny(kind)
    assert layer in {type(module).__name__ for module in lm.modules()}
    assert lacking(lm) == []
    verdict, why, _ = judge(lambda: lm, lacking)
    assert verdict == "refused"
    assert "owns trainable parameters whose gradient norm is not known" in why


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt_neo"])
def test_plain_models_lack_nothing_and_are_right(kind):
    assert judge(lambda: tiny(kind), lacking)[0] == "right"


def test_what_a_tiny_model_lacks_is_named():
    lm = tiny("lfm2")
    plain = type(lm)(type(lm.config)(**{**lm.config.to_diff_dict(), "layer_types": ["full_attention"] * 2}))
    assert lacking(plain) == ["Lfm2ShortConv"]
    verdict, why, _ = judge(lambda: plain, lacking)
    assert (verdict, "Lfm2ShortConv" in why) == ("in part", True)


def test_kinds_are_those_of_the_constructors():
    names = {one.__name__ for one in kinds(AutoModelForCausalLM.from_config(tiny("llama").config).__class__)}
    assert {"LlamaDecoderLayer", "LlamaMLP", "LlamaAttention", "LlamaRMSNorm", "LlamaRotaryEmbedding"} <= names
    assert not any("Classification" in name for name in names)
