"""What models do around their heads is found, and done by the step too."""

import pytest
import torch
from conftest import tiny_model
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)

from oblr.errors import SettingError
from oblr.policy.loading import without_dropout
from oblr.policy.logits import HeadPath, head_path
from oblr.policy.model import PolicyModel
from oblr.policy.selfcheck import check

SHAPE = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
MODELS = {
    "granite": (GraniteForCausalLM, GraniteConfig(logits_scaling=4.0, **SHAPE), HeadPath(1.0, 0.25)),
    "cohere": (CohereForCausalLM, CohereConfig(logit_scale=0.5, **SHAPE), HeadPath(1.0, 0.5)),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config(final_logit_softcapping=2.0, head_dim=12, sliding_window=8, **SHAPE),
        HeadPath(1.0, 1.0, 2.0),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_scales_and_caps(name):
    kind, config, expected = MODELS[name]
    with torch.device("meta"):
        lm = kind(config)
    found = head_path(lm)
    assert (found.before, found.scale, found.cap) == pytest.approx((expected.before, expected.scale, expected.cap))
    check(PolicyModel(kind(config).train(), 0.8), torch.float32)


def test_a_plain_head_is_exactly_that():
    assert head_path(tiny_model(tied=True)) == HeadPath()


def change(lm, what):
    own = lm.forward

    def forward(*args, **kwargs):
        output = own(*args, **kwargs)
        output.logits = what(output.logits)
        return output

    lm.forward = forward


@pytest.mark.parametrize("what", [lambda z: z.square(), lambda z: z.roll(1, -1), lambda z: z[..., :50], torch.sigmoid])
def test_anything_else_is_refused(what):
    lm = tiny_model(tied=True)
    change(lm, what)
    with pytest.raises(SettingError, match=r"^policy\.path: Qwen3ForCausalLM .* scale or cap the logits"):
        head_path(lm)


def test_what_is_changed_in_place_is_seen():
    lm = tiny_model(tied=True)
    change(lm, lambda z: z.mul_(0.5))
    assert head_path(lm).scale == pytest.approx(0.5)


def test_a_head_that_its_logits_are_not_made_with():
    lm = tiny_model(tied=False)
    lm.get_output_embeddings = lambda: torch.nn.Linear(48, 97)
    with pytest.raises(SettingError, match="its logits are not those of its head"):
        head_path(lm)


def test_no_dropout_is_left():
    lm = tiny_model(tied=True)
    lm.model.layers[0].mlp = torch.nn.Sequential(lm.model.layers[0].mlp, torch.nn.Dropout(0.5))
    lm.model.layers[1].self_attn.attention_dropout = lm.model.layers[1].residual_dropout = 0.3
    without_dropout(lm)
    assert lm.model.layers[0].mlp[1].p == lm.model.layers[1].self_attn.attention_dropout == 0
    assert lm.model.layers[1].residual_dropout == 0
