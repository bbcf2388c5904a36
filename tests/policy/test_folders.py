"""A model's folder whose parts do not fit each other ends in one line, by whatever way it comes into a run."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bad_folders import FAULTS, SOUND, TEMPLATES, make, renamed, said
from cases import wide
from evaluating import run as evaluate
from safetensors.torch import load_file, save_file
from tiny_models import tiny
from transformers import AutoModelForCausalLM

from oblr.commands import serve
from oblr.commands.checks import check_model, check_policy
from oblr.data.ends import end_tokens
from oblr.data.prompts import check_ids, encode
from oblr.errors import ExportError, SettingError
from oblr.policy.fit import check_weights
from oblr.policy.loading import check_numbers, load_config, load_model, load_tokenizer, reader, stored_weights
from oblr.policy.model import PolicyModel
from oblr.settings.models import find_model


@pytest.fixture(scope="session")
def sound(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "model")


@pytest.fixture
def model(sound, tmp_path, monkeypatch) -> Path:
    """A sound folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sound, tmp_path / "model")
    return tmp_path / "model"


def look_at(path: str) -> None:
    """All that is looked at before a run."""
    find_model.__wrapped__("policy.path", path)
    config, tokenizer = check_policy(path, "float32", 128), load_tokenizer(path)
    vocabulary = check_model(path, config, tokenizer, exported=True)
    end_tokens(path, tokenizer)
    check_ids(encode(tokenizer, "3 + 4 ="), "0", vocabulary)
    check_numbers(path)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line(model, fault):
    change, words = FAULTS[fault]
    change(model)
    with pytest.raises(SettingError) as error:
        look_at(str(model))
    assert error.value.setting in ("policy.path", "prompt")
    assert words in str(error.value)
    assert len(str(error.value)) < 600
    assert not list(model.parent.glob("**/executed"))


@pytest.mark.parametrize("change", SOUND)
def test_what_fits_is_taken_as_it_is(model, sound, change):
    """By both ways that weights are read: by transformers, and by their names."""
    SOUND[change](model)
    path, expected = str(model), load_file(sound / "model.safetensors")
    look_at(path)
    with torch.no_grad():
        loaded = dict(load_model(path, "float32").named_parameters())
    metadata = reader(path, expected).read_metadata()
    assert {Path(place.relative_path).name for place in metadata.storage_data.values()} <= {
        file.name for file in model.glob("model*.safetensors")
    }
    for name, weight in stored_weights(path):
        assert torch.equal(weight, expected[name])
        assert torch.equal(loaded.pop(name), expected[name])
    assert not loaded


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "gemma2", "qwen2_moe", "phi", *wide("deepseek_v3", "olmoe")])
def test_other_types_under_the_names_of_their_files(tmp_path, kind):
    """Which transformers translates, and may put together: whatever it wrote fits, and nothing may be missing of it."""
    tiny(kind).save_pretrained(tmp_path)
    config, (file,) = load_config(str(tmp_path)), tmp_path.glob("*.safetensors")
    check_weights(str(tmp_path), config)
    stored = load_file(file)
    for name in random.Random(kind).sample(sorted(stored), 3):
        save_file({other: weight for other, weight in stored.items() if other != name}, file, {"format": "pt"})
        with pytest.raises(SettingError, match=r"^policy.path: "):
            check_weights(str(tmp_path), config)


def base_alone(folder: Path) -> None:
    """The file of a model without its head, which transformers loads, and nobody finds by the parameters' names."""
    renamed(lambda name: name.removeprefix("model."))(folder)


def refuses_weights(refused: Callable[..., object], model: Path, *overrides: str) -> str:
    """What a run says in its one line, having written nothing."""
    result = refused(f"policy.path={model}", *overrides)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert not (model.parent / "run").exists()
    return line


@pytest.mark.parametrize(
    "overrides", [("rollout.engine=server",), ("plan=true",), ("policy.adapter=lora", "kl=k3")], ids=" ".join
)
def test_runs_and_plans_refuse_weights_that_would_be_random(refused, model, overrides):
    renamed(lambda name: f"_orig_mod.{name}")(model)
    assert "_orig_mod.model" in refuses_weights(refused, model, *overrides)


def test_a_sharded_run_refuses_what_it_would_not_find(refused, model):
    base_alone(model)
    check_weights(str(model), load_config(str(model)))
    assert "has no model." in refuses_weights(refused, model, "trainer=fsdp", "trainer.devices=1")


def test_an_engines_own_folder(refused, sound, model):
    said("config.json", tie_word_embeddings=False)(model)
    result = refused(f"policy.path={sound}", f"rollout.engines.hf.model={model}")
    assert re.match(r"error: rollout.engines.hf.model: .*no lm_head.weight", result.stderr)


def test_evaluations(model, tmp_path):
    renamed(lambda name: f"base_model.model.{name}")(model)
    with pytest.raises(SettingError, match=r"^model: .*base_model.model."):
        evaluate(tmp_path, f"model={model}")
    assert not (tmp_path / "run").exists()


def test_servers(model):
    said("config.json", tie_word_embeddings=False)(model)
    with pytest.raises(SettingError, match=r"^policy.path: .*no lm_head.weight"):
        serve.serve("127.0.0.1", 1, ["experiment=pocket", f"policy.path={model}"])


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_model_that_is_no_numbers_is_not_loaded(model, value):
    lm = AutoModelForCausalLM.from_pretrained(model)
    lm.model.layers[1].mlp.down_proj.weight.data[-1, -1] = value
    lm.save_pretrained(model)
    with pytest.raises(SettingError, match=r"layers\.1\.mlp\.down_proj\.weight .*NaN or infinite"):
        load_model(str(model), "bfloat16")


def test_a_token_without_an_embedding(sound):
    config, tokenizer = load_config(str(sound)), load_tokenizer(str(sound))
    tokenizer.add_tokens([f"<picture {i}>" for i in range(9)], special_tokens=True)
    vocabulary = check_model(str(sound), config, tokenizer)  # that are there, as of models that see pictures
    check_ids(encode(tokenizer, "1 + 1"), "0", vocabulary)
    with pytest.raises(SettingError, match=r"^prompt: .*problem 7 has token 29\d"):
        check_ids(encode(tokenizer, "1 + <picture 8>"), "7", vocabulary)


def test_an_export_hands_on_how_its_folder_is_sampled_from(model, tmp_path):
    said("generation_config.json", temperature=0.6, top_k=20)(model)
    policy_model, tokenizer = PolicyModel(load_model(str(model), "float32"), 1.0), load_tokenizer(str(model))
    policy_model.export(tokenizer, tmp_path / "policy")
    found = json.loads((tmp_path / "policy" / "generation_config.json").read_text())
    assert (found["temperature"], found["top_k"]) == (0.6, 20)
    look_at(str(tmp_path / "policy"))


def test_weights_outlive_an_export_that_fails(model, tmp_path):
    policy_model, tokenizer = PolicyModel(load_model(str(model), "float32"), 1.0), load_tokenizer(str(model))
    tokenizer.chat_template = {entry["name"]: entry["template"] for entry in TEMPLATES}
    with pytest.raises(ExportError, match=r"could not be written: .*its weights are in .*policy\.weights"):
        policy_model.export(tokenizer, tmp_path / "policy")
    assert not (tmp_path / "policy").exists()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "policy.weights")
    for name, weight in policy_model.weights():
        assert torch.equal(again.get_parameter(name), weight)
