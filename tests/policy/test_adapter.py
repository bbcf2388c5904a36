"""LoRA: what engines are given, what is kept of a run, and what peft loads."""

import functools

import pytest
import torch
from cases import wide
from conftest import POCKET, adapt, combine, log_gradients, make_rollouts, square_norm, tiny_model
from peft import PeftModel
from transformers import AutoModelForCausalLM

from oblr.batch.packing import pack
from oblr.commands.checks import find_checkpoint, trained
from oblr.errors import SettingError
from oblr.gradnorm.measure import GradNorms
from oblr.policy.adapter import LoRA, adapters
from oblr.policy.loading import load_config, load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.run.checkpoint import save, shapes

LENGTHS = [7, 3, 12]


def logprobs(lm):
    with torch.no_grad():
        return PolicyModel(lm, 1.0)(pack(make_rollouts(LENGTHS))).logprobs


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_weights_are_those_of_a_model_that_computes_the_same(tied, family):
    lm, plain = tiny_model(tied, family), tiny_model(tied, family)
    before = logprobs(lm)
    LoRA(4, 8.0, "all-linear", 0).attach(lm)
    assert torch.equal(logprobs(lm), before)
    assert dict(PolicyModel(lm, 1.0).weights()).keys() == dict(plain.named_parameters()).keys()
    for p in adapters(lm).values():
        p.data += 0.1
    after = logprobs(lm)
    assert (after - before).abs().max() > 0.1
    plain.load_state_dict(dict(PolicyModel(lm, 1.0).weights()), strict=False)
    torch.testing.assert_close(logprobs(plain), after, rtol=1e-5, atol=1e-5)


def test_a_sum_is_rounded_and_not_its_terms():
    """A change that is small beside its weight would vanish, had it been rounded to be added."""
    rounded, exact = tiny_model(tied=True).bfloat16(), tiny_model(tied=True)
    exact.load_state_dict(rounded.state_dict())
    for lm in (exact, rounded):
        adapt(lm)
        assert {p.dtype for p in adapters(lm).values()} == {torch.float32}
    found = dict(PolicyModel(rounded, 1.0).weights())
    for name, weight in PolicyModel(exact, 1.0).weights():
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], weight.bfloat16()), name


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("passes", ["one", "two"])
def test_norms_on_a_frozen_model_in_bfloat16(mixed, passes):
    """They are autograd's of the same products, in whichever precision autocast has adapters compute."""
    lm, rollouts, group_size = tiny_model(tied=True).bfloat16(), make_rollouts(LENGTHS * 2), 3
    adapt(lm, mixed=mixed)
    coefficients = torch.linspace(-1, 1, len(rollouts))
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        oracle = log_gradients(lm, rollouts, 1.0)
        with GradNorms("exact", passes).measure(PolicyModel(lm, 1.0), lm, [pack(rollouts)], group_size) as measured:
            measured.backward(coefficients)
    norms = torch.tensor([square_norm(gradient) for gradient in oracle]).double()
    torch.testing.assert_close(measured.square_norms, norms, rtol=0.02, atol=0)
    expected = combine(oracle, coefficients.tolist())
    error = {name: p.grad.double() - expected[name] for name, p in adapters(lm).items()}
    assert square_norm(error) < 0.02**2 * square_norm(expected)
    assert all(p.grad is None for p in lm.parameters() if not p.requires_grad)


def test_peft_loads_the_adapter_and_transformers_the_policy(tmp_path):
    lm = load_model(str(POCKET), "float32")
    adapt(lm, targets=["q_proj", "down_proj"])
    PolicyModel(lm, 1.0).export(load_tokenizer(str(POCKET)), tmp_path / "policy")
    ids = torch.tensor([[5, 3, 7, 2]])
    by_peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(POCKET), tmp_path / "policy" / "adapter")
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert type(policy) is type(lm)
    assert by_peft.peft_config["default"].base_model_name_or_path == str(POCKET)
    with torch.no_grad():
        expected, base = lm(ids).logits, AutoModelForCausalLM.from_pretrained(POCKET)(ids).logits
        assert (expected - base).abs().max() > 0.1
        torch.testing.assert_close(by_peft(ids).logits, expected)
        torch.testing.assert_close(policy(ids).logits, expected, rtol=1e-4, atol=1e-4)
    PolicyModel(load_model(str(POCKET), "float32"), 1.0).export(load_tokenizer(str(POCKET)), tmp_path / "plain")
    assert not (tmp_path / "plain" / "adapter").exists()


def test_first_values_are_the_seeds_alone():
    lms = [tiny_model(tied=True, seed=seed) for seed in (0, 1, 2)]
    for lm, seed in zip(lms, (5, 5, 6), strict=True):
        torch.rand(seed)
        LoRA(4, 8.0, "all-linear", seed).attach(lm)
    one, same, other = (adapters(lm) for lm in lms)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert all(torch.equal(one[name], other[name]) == ("lora_B" in name) for name in one)
    assert all(p.any() == ("lora_A" in name) for name, p in one.items())
    a = torch.cat([p.flatten() * p.shape[1] ** 0.5 for name, p in one.items() if "lora_A" in name])
    assert 0.99 < a.abs().max() <= 1
    assert abs(a.square().mean() - 1 / 3) < 0.02


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("policy.adapter=qlora", "'none' or 'lora'"),
        ("policy.lora.rank=0", "greater than or equal to 1"),
        ("policy.lora.targets=[nosuch]", "nosuch"),
        *wide(
            ("policy.lora.targets=[lm_head]", "head"),
            ("policy.lora.targets=[embed_tokens]", "embed_tokens is no plain linear layer"),
            ("policy.lora.targets=[input_layernorm]", "not supported"),
        ),
    ],
)
def test_what_cannot_be_adapted(train, setting, words):
    result = train("policy.adapter=lora", setting)
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"error: {setting.partition('=')[0]}: ")
    assert words in line
    assert result.returncode == 2


def test_what_is_no_plain_linear_layer_is_refused():
    class Halved(torch.nn.Linear):
        def forward(self, x):
            return 0.5 * super().forward(x)

    lm = tiny_model(tied=True)
    lm.model.layers[1].mlp.up_proj = Halved(48, 64, bias=False)
    with pytest.raises(SettingError, match=r"layers\.1\.mlp\.up_proj is no plain linear layer"):
        LoRA(4, 8.0, "all-linear", 0).attach(lm)


def test_a_checkpoint_has_the_adapters_and_is_of_one_base_model(tmp_path):
    lora, base = LoRA(4, 8.0, "all-linear", 0), {"policy.lora.alpha": 8.0, "weights": "one"}
    lm = load_model(str(POCKET), "float32")
    lora.attach(lm)
    policy = torch.nn.ModuleDict({"scorer": PolicyModel(lm, 1.0)})
    optimizer = torch.optim.AdamW(adapters(lm).values())
    for p in adapters(lm).values():
        p.grad = torch.ones_like(p)
    optimizer.step()
    save(tmp_path / "a.ckpt", policy, optimizer, {"oblr": {"base": base}})
    expected = trained(load_config(str(POCKET)), lora)
    assert shapes(tmp_path / "a.ckpt") == expected == {f"scorer.lm.{name}": p.shape for name, p in adapters(lm).items()}
    assert sum(file.stat().st_size for file in (tmp_path / "a.ckpt").glob("*.distcp")) < (
        3 * 4 * sum(p.numel() for p in adapters(lm).values()) + 2**20
    )
    find = functools.partial(find_checkpoint, str(tmp_path / "a.ckpt"), tmp_path)
    assert find(expected, base) == tmp_path / "a.ckpt"
    for other in (LoRA(3, 8.0, "all-linear", 0), LoRA(4, 8.0, ["q_proj"], 0), None):
        with pytest.raises(SettingError, match=r"ckpt_path: .*other adapters"):
            find(trained(load_config(str(POCKET)), other), base)
    for change in ({"policy.lora.alpha": 4.0}, {"weights": "others"}):
        with pytest.raises(SettingError, match=f"ckpt_path: .*{next(iter(change))}="):
            find(expected, base | change)
