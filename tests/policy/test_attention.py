"""Packed rows without a mask. The kernel itself runs on GPUs alone: a plain loop of its signature stands for it."""

import inspect

import pytest
import torch
from conftest import combine, log_gradients, make_rollouts, square_norm, tiny_model
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from transformers import MistralConfig, MistralForCausalLM

from oblr.batch.packing import pack
from oblr.errors import SettingError
from oblr.gradnorm.measure import GradNorms
from oblr.policy import attention
from oblr.policy.attention import SDPA, VARLEN, choose_attention, varlen_attention
from oblr.policy.model import PolicyModel

LENGTHS = (1, 5, 17, 3, 40, 8, 2, 1)


def loop(query, key, value, bounds, bounds_k, longest, longest_k, *, scale, window_size, enable_gqa):
    """Sequence by sequence, with a mask."""
    left, right = window_size
    assert (right, longest, enable_gqa) == (0, longest_k, True)
    assert bounds.dtype == torch.int32
    assert int(bounds.diff().max()) == longest
    outs = []
    for start, end in zip(bounds.tolist()[:-1], bounds_k.tolist()[1:], strict=True):
        q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))
        k, v = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (k, v))
        back = torch.arange(end - start)[:, None] - torch.arange(end - start)
        seen = (back >= 0) & ((back <= left) | (left < 0))
        weights = (q @ k.mT * scale).masked_fill(~seen, -torch.inf).softmax(-1)
        outs.append((weights @ v).transpose(0, 1))
    return torch.cat(outs)


@pytest.fixture
def kernel(monkeypatch):
    def stand_in(*args, **kwargs):
        inspect.signature(varlen_attn).bind(*args, **kwargs)
        return loop(*args, **kwargs)

    monkeypatch.setattr(attention, "varlen_attn", stand_in)


def sliding():
    """Every layer looks back 7 tokens."""
    torch.manual_seed(0)
    shape = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 12, "sliding_window": 7}
    return MistralForCausalLM(
        MistralConfig(vocab_size=97, num_attention_heads=4, num_key_value_heads=2, **shape)
    ).train()


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("make", [lambda: tiny_model(True), lambda: tiny_model(False, "llama"), sliding])
def test_norms_and_gradient_are_the_oracles(kernel, make, checkpointing):
    lm, rollouts = make(), make_rollouts(LENGTHS)
    lm.set_attn_implementation(SDPA)
    oracle = log_gradients(lm, rollouts, 0.8)
    lm.set_attn_implementation(VARLEN)
    if checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    coefficients = torch.linspace(-1, 1.3, len(LENGTHS))
    with GradNorms("exact", "one").measure(PolicyModel(lm, 0.8), lm, [pack(rollouts)], 4) as measured:
        measured.backward(coefficients)
    expected = combine(oracle, coefficients.tolist())
    error = {name: p.grad.double() - expected[name] for name, p in lm.named_parameters()}
    assert (square_norm(error) / square_norm(expected)) ** 0.5 < 1e-5
    torch.testing.assert_close(
        measured.square_norms, torch.tensor([square_norm(g) for g in oracle]).double(), rtol=1e-5, atol=0
    )


def test_the_kernel_takes_what_it_is_given():
    """Its own rules on shapes, from torch, without numbers; forward and backward."""
    query, key = (torch.zeros(2, heads, 16, 64, device="meta", dtype=torch.bfloat16) for heads in (8, 2))
    query.requires_grad_()
    bounds = torch.zeros(4, device="meta", dtype=torch.int32)
    out, _ = varlen_attention(nn.Identity(), query, key, key, None, 0.1, None, bounds, 12)
    assert out.shape == (2, 16, 8, 64)
    out.sum().backward()
    assert query.grad.shape == query.shape


@pytest.mark.parametrize(
    ("extra", "asks"), [({"softcap": 30.0}, "softcap"), ({"attention_mask": torch.ones(1)}, "mask"), ({}, "boundaries")]
)
def test_what_the_kernel_cannot_do_is_refused(extra, asks):
    x = torch.zeros(1, 2, 4, 8)
    with pytest.raises(SettingError, match=rf"^policy\.attention: Identity asks for .*{asks}"):
        varlen_attention(nn.Identity(), x, x, x, **{"attention_mask": None} | extra)


def test_the_choice():
    config = tiny_model(True, head_dim=16).config
    assert choose_attention(config, True, torch.bfloat16) == VARLEN
    assert choose_attention(config, True, torch.float32) == SDPA  # flash attention has none
    assert choose_attention(config, False, torch.bfloat16) == SDPA
    config.head_dim = 12
    assert choose_attention(config, True, torch.bfloat16) == SDPA
