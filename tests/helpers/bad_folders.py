"""Model folders whose parts do not fit, and what the program's entry points say of them.

`make` builds a sound folder: a Qwen3 of random weights with the pocket policy's tokenizer. Each of `FAULTS` spoils it
in one way, and each of `SOUND` changes it in a way that must not matter. A further fault is one more line there.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conftest import POCKET, tiny_model
from safetensors.torch import load_file, save_file

Change = Callable[[Path], object]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3303664\n"
SHAPE = {"vocab_size": 288, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "head_dim": 32}


def make(folder: Path) -> Path:
    """A sound folder."""
    tiny_model(tied=True, **SHAPE, num_key_value_heads=1, max_position_embeddings=256, eos_token_id=0).save_pretrained(
        folder
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(POCKET / name, folder)
    return folder


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def absent(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def said(name: str, **values: Any) -> Change:
    """Other values in a JSON file."""

    def change(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    """Other weights in the file."""

    def rewrite(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file({name: w.clone() for name, w in change(load_file(file)).items()}, file, {"format": "pt"})

    return rewrite


def renamed(rename: Callable[[str], str]) -> Change:
    return weights(lambda stored: {rename(name): weight for name, weight in stored.items()})


def without(*parts: str) -> Change:
    return weights(lambda stored: {name: w for name, w in stored.items() if not any(part in name for part in parts)})


def extra(**more: torch.Tensor) -> Change:
    return weights(lambda stored: stored | {name.replace("__", "."): weight for name, weight in more.items()})


def filled(value: float) -> Change:
    def fill(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        stored["model.layers.1.mlp.up_proj.weight"][3, 5] = value
        return stored

    return weights(fill)


def cut(share: float) -> Change:
    """Of the file of weights, its first part alone."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])

    return change


def sharded(then: Change = lambda folder: None) -> Change:
    def change(folder: Path) -> None:
        stored = sorted(load_file(folder / "model.safetensors").items())
        (folder / "model.safetensors").unlink()
        parts, places = (dict(stored[::2]), dict(stored[1::2])), {}
        for number, part in enumerate(parts, 1):
            save_file(part, folder / f"model-{number:05d}-of-00002.safetensors", {"format": "pt"})
            places |= dict.fromkeys(part, f"model-{number:05d}-of-00002.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        then(folder)

    return change


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


class Trap:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"model.norm.weight": Trap()}))


def own_code(folder: Path) -> None:
    """A type of model that the folder brings itself."""
    (folder / "own.py").write_text("open('executed', 'w')\n")
    maps = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    said("config.json", model_type="own", auto_map=maps)(folder)


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Change:
    def rewrite(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        change(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return rewrite


def end_of_text(number: int) -> Change:
    """The token that ends a text has another id."""

    def change(content: dict[str, Any]) -> None:
        content["added_tokens"][0]["id"] = number
        content["model"]["vocab"]["<|endoftext|>"] = number

    return tokenizer(change)


def wider(folder: Path) -> None:
    """A tokenizer that is another model's: more ordinary tokens than there are rows."""
    tokenizer(lambda content: content["model"]["vocab"].update({f"word{i}": 288 + i for i in range(9)}))(folder)


def mute(folder: Path) -> None:
    """A tokenizer that no text has tokens of."""
    replacement = {"type": "Replace", "pattern": {"Regex": "[\\s\\S]"}, "content": ""}
    tokenizer(lambda content: content.update(normalizer=replacement))(folder)


def emptied(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("mine")


def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(POCKET), "peft_type": "LORA"})
    )


TEMPLATES = [{"name": "default", "template": "{{ messages }}"}, {"name": "../x", "template": "{{ messages }}"}]
NORM = "model.norm.weight"
#: What is wrong, how it comes about, and what the line names.
FAULTS: dict[str, tuple[Change, str]] = {
    # weights that the file lacks
    "untied by config": (said("config.json", tie_word_embeddings=False), "lm_head.weight"),
    "names under _orig_mod.": (renamed(lambda name: f"_orig_mod.{name}"), "_orig_mod."),
    "names under base_model.model.": (renamed(lambda name: f"base_model.model.{name}"), "base_model.model."),
    "names under module.": (renamed(lambda name: f"module.{name}"), "module."),
    "more layers than the file": (
        said("config.json", num_hidden_layers=4, layer_types=["full_attention"] * 4),
        "model.layers.2",
    ),
    "no final norm": (without(NORM), NORM),
    "no embedding": (without("embed_tokens"), "embed_tokens"),
    "one projection is absent": (without("layers.1.self_attn.k_proj"), "layers.1.self_attn.k_proj"),
    "biases by config alone": (said("config.json", attention_bias=True), "bias"),
    "a file without weights": (weights(lambda stored: {}), "has no"),
    # … has and nobody uses
    "a value head": (extra(v_head__weight=torch.zeros(1, 32)), "v_head.weight"),
    "biases in the file alone": (extra(model__layers__0__self_attn__q_proj__bias=torch.zeros(64)), "q_proj.bias"),
    "fewer layers than the file": (
        said("config.json", num_hidden_layers=1, layer_types=["full_attention"]),
        "model.layers.1",
    ),
    "tied, and another head in the file": (extra(lm_head__weight=torch.zeros(288, 32)), "lm_head.weight"),
    # … has in another form
    "another hidden size": (said("config.json", hidden_size=64), "[288, 64] by its config.json"),
    "another vocabulary by config": (said("config.json", vocab_size=320), "[320, 32]"),
    "fewer heads by config": (said("config.json", num_attention_heads=1), "[32, 32] by its config.json"),
    "quantised": (said("config.json", quantization_config={"quant_method": "fp8"}), "fp8"),
    "stored as integers": (weights(lambda stored: stored | {NORM: stored[NORM].to(torch.int8)}), "I8"),
    "NaN": (filled(float("nan")), "NaN"),
    "infinite": (filled(float("inf")), "infinite"),
    # files
    "an LFS pointer for weights": (text("model.safetensors", POINTER), "git lfs pull"),
    "an LFS pointer for a tokenizer": (text("tokenizer.json", POINTER), "git lfs pull"),
    "half a file": (cut(0.5), "no whole safetensors file"),
    "half a header": (cut(0.01), "no whole safetensors file"),
    "an empty file": (cut(0), "no whole safetensors file"),
    "no weights": (absent("model.safetensors"), "no weights"),
    "shards without index": (sharded(absent("model.safetensors.index.json")), "index"),
    "an index and no shard": (sharded(absent("model-00002-of-00002.safetensors")), "model-00002-of-00002"),
    "an index of nothing": (sharded(text("model.safetensors.index.json", "{}")), "index.json"),
    "an index that is no JSON": (sharded(text("model.safetensors.index.json", "{")), "no JSON"),
    "two shards have a weight": (
        sharded(lambda f: shutil.copy(f / "model-00001-of-00002.safetensors", f / "model-00002-of-00002.safetensors")),
        "model-00001-of-00002",
    ),
    "pickled weights": (pickled, "save_pretrained"),
    "an empty folder": (emptied, "config.json"),
    "a file for a folder": (a_file, "file"),
    "an adapter alone": (both(emptied, adapter), "adapter"),
    "an adapter beside": (adapter, "adapter"),
    # configuration
    "no config.json": (absent("config.json"), "config.json"),
    "config.json is no JSON": (text("config.json", "{"), "no JSON"),
    "config.json is null": (text("config.json", "null"), "NoneType"),
    "config.json is a list": (text("config.json", "[]"), "list"),
    "config.json is not UTF-8": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe{"), "no JSON"),
    "a size that is text": (said("config.json", hidden_size="many"), "hidden_size"),
    "a size that is null": (said("config.json", num_hidden_layers=None), "num_hidden_layers"),
    "a size that is negative": (said("config.json", vocab_size=-1), "causal LM"),
    "no heads": (said("config.json", num_key_value_heads=0), ""),
    "an unknown activation": (said("config.json", hidden_act="zzz"), "zzz"),
    "an unknown type": (said("config.json", model_type="nosuch"), "nosuch"),
    "a type that is no causal LM": (said("config.json", model_type="t5"), ""),
    "a type with code of its own": (own_code, "code of its own"),
    "generation_config.json is no JSON": (text("generation_config.json", "{"), "generation_config.json"),
    "generation_config.json is null": (text("generation_config.json", "null"), "generation_config.json"),
    # tokenizer
    "no tokenizer": (absent("tokenizer.json", "tokenizer_config.json"), "no tokenizer"),
    "no tokenizer.json": (absent("tokenizer.json"), "tokenizer"),
    "tokenizer.json is no JSON": (text("tokenizer.json", "{"), "no JSON"),
    "tokenizer.json is empty": (text("tokenizer.json", "{}"), "tokenizer"),
    "tokenizer_config.json is a list": (text("tokenizer_config.json", "[]"), "tokenizer_config.json"),
    "ids beyond the embedding": (wider, "ids up to 296"),
    "an end beyond the embedding": (end_of_text(300), "ids up to 300"),
    "prompts of no tokens": (mute, "no tokens"),
    # what could not be written after the last step
    "a template that cannot be written": (said("tokenizer_config.json", chat_template=TEMPLATES), "../x"),
}
#: What must not matter.
SOUND: dict[str, Change] = {
    "sound": lambda folder: None,
    "shards and an index": sharded(),
    "tables of positions, as older files have them": extra(
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(16)
    ),
    "a tied head that is stored twice": weights(
        lambda stored: stored | {"lm_head.weight": stored["model.embed_tokens.weight"]}
    ),
    "another model's shards beside": lambda folder: save_file({NORM: torch.zeros(32)}, folder / "zz.safetensors"),
    "a temperature without do_sample": said("generation_config.json", temperature=0.6),
    "top_k without do_sample": said("generation_config.json", top_k=20),
    "no generation_config.json": absent("generation_config.json"),
}
#: Faults of what is written after the last step; an evaluation writes no policy.
UNWRITTEN = {name for name in FAULTS if "cannot be written" in name}
#: Faults of parts that a plan does not read.
UNPLANNED = {name for name, (_, words) in FAULTS.items() if "tokenizer" in name or "template" in name} | {
    *("NaN", "infinite", "no weights", "ids beyond the embedding", "an end beyond the embedding"),
    *("prompts of no tokens", "generation_config.json is no JSON", "generation_config.json is null"),
}
