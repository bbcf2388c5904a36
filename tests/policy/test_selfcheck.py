"""A policy that the step would get wrong never gets as far as an engine."""

import random
import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import wide
from conftest import ROOT
from planted import FAULTS, GRADED, coarser, deep, healthy

from oblr.errors import SettingError
from oblr.gradnorm.uses import LinearUse
from oblr.policy.adapter import LoRA, factors
from oblr.policy.autograds import Plain
from oblr.policy.model import PolicyModel
from oblr.policy.probes import probes
from oblr.policy.rounding import FLOORS
from oblr.policy.selfcheck import check
from oblr.policy.slices import SHARE, parts, widened

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
    model = PolicyModel(lm, 0.8)
    check(model, torch.float32)
    with FAULTS[name](lm), pytest.raises(SettingError, match=r"^policy\.path: .*" + NAMED.get(name, "")):
        check(model, torch.float32)


@pytest.mark.parametrize(
    ("family", "tied"), [("qwen3", True), *wide(("qwen3", False), ("qwen2", True), ("qwen2", False))]
)
def test_a_healthy_model_in_bfloat16(family, tied):
    check(PolicyModel(healthy(family, tied).bfloat16(), 1.0), torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        check(PolicyModel(healthy(family, tied), 1.0), torch.bfloat16)


#: What rounding hid from the check when it was made in the run's own precision alone.
HIDDEN = (
    "a sliced head without cross terms",
    "a linear layer missing from the norms",
    "a norm missing from the norms",
    "temperature 1 % off",
    "a key's bias without its gradient",
    "a small parameter's gradient 1 % off",
    "gradients of split groups 1 % off",
    "a layer that rounds in training",
)


def check_in(lm, precision):
    """Weights in bfloat16, or float32 ones under autocast."""
    with torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext():
        check(PolicyModel(lm.bfloat16() if precision == "bfloat16" else lm, 0.8), torch.bfloat16)


@pytest.mark.parametrize("precision", ["bfloat16", *wide("autocast")])
@pytest.mark.parametrize("name", [*HIDDEN, *wide(*sorted(FAULTS.keys() - set(HIDDEN)))])
def test_a_planted_fault_is_caught_whatever_the_run_computes_in(name, precision):
    lm = deep("qwen2" if "bias" in name else "qwen3", 5, hidden=32)
    with FAULTS[name](lm), pytest.raises(SettingError, match=r"^policy\.path: .*"):
        check_in(lm, precision)


@pytest.mark.parametrize("name", GRADED)
def test_a_line_has_the_number_that_was_compared_and_its_limit(name):
    """A thousandth is missing: of gradients and of a layer's part of n_i that is what differs."""
    lm = deep("qwen3", 2, hidden=32)
    with GRADED[name](lm, 1e-3), pytest.raises(SettingError) as raised:
        check(PolicyModel(lm, 1.0), torch.float32)
    differs, limit = re.search(
        r"by ([\d.e-]+) % \(in float32, .*; ([\d.e-]+) % may be rounding\)", str(raised.value)
    ).groups()
    assert float(limit) == pytest.approx(100 * FLOORS[torch.float32] * (0.2 if "temperature" in name else 1))
    assert float(limit) < float(differs) < 0.3
    if "temperature" not in name:
        assert 0.02 < float(differs) <= 0.201


class OtherAttention(PolicyModel):
    """In the model's own forward, as a GPU's kernels are others for packed rows."""

    def own(self, ids):
        self.lm.set_attn_implementation("eager")
        try:
            return super().own(ids)
        finally:
            self.lm.set_attn_implementation("sdpa")


@pytest.mark.parametrize("precision", ["bfloat16", *wide("autocast")])
@pytest.mark.parametrize("family", ["qwen3", *wide("qwen2")])
def test_a_healthy_deep_model_passes_whose_rounding_grows(family, precision):
    lm = deep(family, 10, gain=2.0, hidden=32)
    with torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext():
        check(OtherAttention(lm.bfloat16() if precision == "bfloat16" else lm, 1.0), torch.bfloat16)


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_what_is_wrong_in_the_runs_own_precision_alone_is_caught(precision):
    """Noise of a tenth on one layer of packed rows, of which float32 has nothing."""
    lm = deep("qwen3", 4, hidden=32)
    with coarser(lm, 0.1), pytest.raises(SettingError, match=r"in bfloat16, .* % may be rounding"):
        check_in(lm, precision)


def test_parts_of_a_model_in_bfloat16_have_every_layer_once_and_leave_it_as_it_was():
    lm = deep("qwen2", 9, hidden=32).bfloat16()
    model = PolicyModel(lm, 1.0)
    before, layers = {name: p.clone() for name, p in lm.state_dict().items()}, list(lm.model.layers)
    found, total = [], sum(p.numel() for p in lm.parameters())
    for part in parts(Plain(model, probes(lm.get_input_embeddings()))):
        with widened(model, part):
            own = [i for i, layer in enumerate(lm.model.layers) if layer is layers[i]]
            assert {p.dtype for p in lm.parameters()} == {torch.float32}
            assert sum(p.numel() for p in lm.parameters()) <= SHARE * total
            found += own
    assert found == list(range(9))
    assert list(lm.model.layers) == layers
    assert all(torch.equal(p, before[name]) and p.dtype == before[name].dtype for name, p in lm.state_dict().items())


def test_a_model_whose_layers_need_each_other_is_looked_at_whole():
    lm = deep("qwen3", 9, hidden=32).bfloat16()
    first, last, seen = lm.model.layers[0], lm.model.layers[8], {}
    lm.model.register_forward_pre_hook(lambda *_: seen.clear())
    first.register_forward_hook(lambda module, _, y: seen.update(y=y) and None)
    last.register_forward_hook(lambda module, _, y: y + 0 * seen.pop("y"))
    model = PolicyModel(lm, 1.0)
    assert [part.blocks for part in parts(Plain(model, probes(lm.get_input_embeddings())))] == [None]


def test_what_an_adapter_begins_with_does_not_hide_its_other_half(monkeypatch):
    """B is zero, and so is the gradient of A, right or wrong."""
    lm = healthy()
    LoRA(3, 6.0, "all-linear", seed=1).attach(lm)
    a, b = factors(lm.model.layers[1].mlp.up_proj)
    check(PolicyModel(lm, 1.0), torch.float32)
    right = LinearUse.gradient
    halved = lambda use: replace(use, b=use.b / 2) if use.module.weight is a else use  # noqa: E731
    monkeypatch.setattr(LinearUse, "gradient", lambda self, into=None: right(halved(self), into))
    with pytest.raises(SettingError, match=r"the gradient of model\.layers\.1\.mlp\.up_proj\.lora_A"):
        check(PolicyModel(lm, 1.0), torch.float32)
    assert not b.any()


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
            check(PolicyModel(lm, 1.0), torch.float32)
    else:
        check(PolicyModel(lm, 1.0), torch.float32)
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
    check(PolicyModel(lm, 1.0), torch.float32)


def test_a_run_ends_in_one_line(train, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'benchmarks'}")
    result = train("steps=1", "policy._target_=planted.NoisyPolicy")
    assert result.returncode == 2
    assert re.fullmatch(
        r"error: policy\.path: model\.embed_tokens computes .* % \(in float32.*\) \(this .*\); see docs/models\.md\n",
        result.stderr,
    )


@pytest.mark.parametrize(
    ("trainer", "policy", "said"),
    [
        ("ddp", "WrongSecondRank", r"the gradient of model.layers.2.post_attention_layernorm.weight differs by 0."),
        *wide(("fsdp", "NoisyPolicy", "model.embed_tokens computes something else for packed sequences")),
    ],
)
def test_every_rank_layout_is_checked_and_after_a_resume_too(train, monkeypatch, trainer, policy, said):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'benchmarks'}")
    run = (f"trainer={trainer}", "trainer.accelerator=cpu", "trainer.devices=2", "callbacks.checkpoints.every=1")
    resumes = trainer == "fsdp"
    assert not resumes or train("steps=1", *run).returncode == 0
    resume = ["ckpt_path=last"] if resumes else []
    result = train("steps=2", *resume, *run, f"policy._target_=planted.{policy}")
    assert result.returncode == 2
    assert f"policy.path: {said}" in result.stderr
    assert "Traceback" not in result.stderr
