"""A policy that the step would get wrong never gets as far as an engine."""

import random
import re

import numpy as np
import pytest
import torch
from conftest import ROOT
from planted import FAULTS, healthy

from oblr.errors import SettingError
from oblr.policy.model import TokenScorer
from oblr.policy.selfcheck import check

#: What each is told apart by, where one line can name it.
NAMED = {
    "dropout of a layer's output": r"model\.layers\.0\.mlp computes something else",
    "packed sequences see each other": r"model\.layers\.0\.self_attn\.o_proj computes",
    "logits of another head than the named one": "its head computes",
    "a weight read without its layer": r"the gradient of model\.layers\.0\.mlp\.gate_proj\.weight differs by \d\.\d+ %",
    "biases count half": r"the gradient of model\.layers\.1\.self_attn\.v_proj\.bias differs by",
    "a tied head without cross terms": r"squared norms .* first that of model\.embed_tokens\.weight",
    "a sliced head without cross terms": r"squared norms .* first that of model\.embed_tokens\.weight",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name):
    lm = healthy("qwen2" if "bias" in name else "qwen3", tied="tied" in name or "sliced" in name)
    scorer = TokenScorer(lm, 0.8)
    check(scorer, torch.float32)
    with FAULTS[name](lm), pytest.raises(SettingError, match=r"^policy\.path: .*" + NAMED.get(name, "")):
        check(scorer, torch.float32)


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_healthy_model_in_bfloat16(family, tied):
    check(TokenScorer(healthy(family, tied).bfloat16(), 1.0), torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        check(TokenScorer(healthy(family, tied), 1.0), torch.bfloat16)


@pytest.mark.parametrize("fault", ["", "noise on embeddings in training"])
def test_everything_is_left_as_it_was(fault):
    lm = healthy()
    lm.model.register_buffer("seen", torch.zeros(1))
    lm.model.layers[1].eval()
    lm.model.layers[1].register_forward_hook(lambda *_: lm.model.seen.add_(1) and None)
    before = {name: x.clone() for name, x in lm.state_dict().items()}
    modes, draws = [module.training for module in lm.modules()], (torch.get_rng_state(), random.getstate())
    numbers = np.random.get_state()[1].copy()
    if fault:
        with FAULTS[fault](lm), pytest.raises(SettingError):
            check(TokenScorer(lm, 1.0), torch.float32)
    else:
        check(TokenScorer(lm, 1.0), torch.float32)
    after = lm.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    assert [module.training for module in lm.modules()] == modes
    assert torch.equal(torch.get_rng_state(), draws[0])
    assert random.getstate() == draws[1]
    assert (np.random.get_state()[1] == numbers).all()
    assert all(p.grad is None for p in lm.parameters())


def test_frozen_parameters_need_no_gradient():
    lm = healthy()
    for name, p in lm.named_parameters():
        p.requires_grad_("q_proj" in name)
    check(TokenScorer(lm, 1.0), torch.float32)


def test_a_run_ends_in_one_line(train, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'benchmarks'}")
    result = train("steps=1", "policy._target_=planted.NoisyPolicy")
    assert result.returncode == 2
    assert re.fullmatch(
        r"error: policy\.path: model\.embed_tokens computes .* % \(in float32.*\) \(this .*\); see docs/models\.md\n",
        result.stderr,
    )


@pytest.mark.parametrize("trainer", ["ddp", "fsdp"])
def test_every_rank_layout_is_checked_and_after_a_resume_too(train, monkeypatch, trainer):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'benchmarks'}")
    run = (f"trainer={trainer}", "trainer.accelerator=cpu", "trainer.devices=2", "callbacks.checkpoints.every=1")
    resumes = trainer == "fsdp"
    assert not resumes or train("steps=1", *run).returncode == 0
    resume = ["ckpt_path=last"] if resumes else []
    result = train("steps=2", *resume, *run, "policy._target_=planted.NoisyPolicy")
    assert result.returncode == 2
    assert "policy.path: model.embed_tokens computes something else for packed sequences" in result.stderr
    assert "Traceback" not in result.stderr
