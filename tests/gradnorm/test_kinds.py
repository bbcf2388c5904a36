"""Layers beyond Qwen's: what they compute tells their kind, and their norms are those of autograd."""

import pytest
import torch
from conftest import combine, log_gradients, make_rollouts, square_norm, tiny_model
from torch import nn
from transformers.models.exaone4.modeling_exaone4 import Exaone4RMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, Gemma3TextScaledWordEmbedding
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.pytorch_utils import Conv1D

from oblr.batch.packing import pack
from oblr.gradnorm import kinds
from oblr.gradnorm.axes import token_axis
from oblr.gradnorm.capture import capture
from oblr.policy.model import PolicyModel

LENGTHS, TEMPERATURE = (1, 5, 17, 3, 40, 8, 2, 1), 0.7


def layer_norm(lm):
    lm.model.layers[0].input_layernorm = nn.LayerNorm(48)


def shifted(lm):
    lm.model.layers[1].post_attention_layernorm = Gemma3RMSNorm(48)


def one_plus(lm):
    lm.model.norm = NemotronLayerNorm1P(48)


def transposed(lm):
    lm.model.layers[0].mlp.down_proj = Conv1D(48, 64)


def heads_first(lm):
    attention = lm.model.layers[0].self_attn
    attention.q_norm = _HeadsFirst(attention.q_norm)


class _HeadsFirst(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.transpose(1, 2).contiguous()).transpose(1, 2)


def scaled_embedding(lm):
    embedding = Gemma3TextScaledWordEmbedding(97, 48, 3, embed_scale=48**0.5)
    lm.lm_head.weight = embedding.weight
    lm.model.embed_tokens = embedding


def no_bias(lm):
    lm.model.layers[1].input_layernorm = nn.LayerNorm(48, bias=False)


CHANGES = (layer_norm, shifted, one_plus, transposed, heads_first, scaled_embedding, no_bias)


@pytest.mark.parametrize("change", CHANGES)
def test_norms_and_gradients_are_those_of_autograd(change):
    lm, rollouts = tiny_model(tied=True), make_rollouts(LENGTHS)
    change(lm)
    for p in lm.parameters():
        p.data += 0.05 * torch.randn_like(p)
    oracle = log_gradients(lm, rollouts, TEMPERATURE)
    packed, model = pack(rollouts), PolicyModel(lm, TEMPERATURE)
    plain = model(packed).logprobs
    with capture(lm, packed.segments, packed.target_segments, "record") as tape:
        captured = model(packed).logprobs
        captured.sum().backward()
    assert (captured - plain).abs().max() < 1e-5
    expected = torch.tensor([square_norm(g) for g in oracle])
    torch.testing.assert_close(tape.square_norms.float(), expected, rtol=1e-5, atol=0)
    coefficients = torch.linspace(-1, 1.3, len(LENGTHS))
    groups = tape.accumulate(coefficients, 4)
    summed = combine(oracle, coefficients.tolist())
    for name, p in lm.named_parameters():
        assert (p.grad.double() - summed[name]).norm() < 1e-5 * summed[name].norm(), name
    halves = [combine(oracle[s], coefficients[s].tolist()) for s in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(groups, torch.tensor([square_norm(g) for g in halves]).double(), rtol=1e-5, atol=0)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))

    def forward(self, x):
        return x * self.weight + self.bias * x


@pytest.mark.parametrize(
    ("module", "known"),
    [
        *((kind, True) for kind in (nn.LayerNorm(5), Gemma3RMSNorm(5), Exaone4RMSNorm(5), nn.LayerNorm((3, 5)))),
        *((kind, False) for kind in (nn.BatchNorm1d(5), nn.PReLU(5), nn.GroupNorm(1, 5), Named(), nn.Linear(5, 5))),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_scale_is_told_by_its_numbers(module, known):
    assert kinds.is_scale(module, module.forward) == known


def test_the_axis_of_tokens_is_remembered_where_another_is_as_long():
    first, second, unseen = nn.Identity(), nn.Identity(), nn.Identity()
    assert token_axis(first, torch.Size([2, 7, 4, 12]), torch.Size([2, 7]), 1) == 1
    assert token_axis(second, torch.Size([2, 4, 7, 12]), torch.Size([2, 7]), 1) == 2
    same = torch.Size([2, 4, 4, 12]), torch.Size([2, 4])
    assert (token_axis(first, *same, 1), token_axis(second, *same, 1), token_axis(unseen, *same, 1)) == (1, 2, 1)
    assert token_axis(first, torch.Size([8, 4, 12]), torch.Size([2, 4]), 1) is None  # rows end to end, until now not
    assert token_axis(nn.Identity(), torch.Size([8, 4, 12]), torch.Size([2, 4]), 1) == 0
    assert token_axis(nn.Identity(), torch.Size([2, 5, 12]), torch.Size([2, 4]), 1) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_that_is_looked_up_in_other_rows_is_no_plain_one(dtype):
    scaled = Gemma3TextScaledWordEmbedding(97, 48, 3, embed_scale=48**0.5).to(dtype)
    assert kinds.lookup_scale(scaled, scaled.forward) is not None
    shifted_by_two = OPTLearnedPositionalEmbedding(97, 48).to(dtype)
    assert kinds.lookup_scale(shifted_by_two, shifted_by_two.forward) is None
