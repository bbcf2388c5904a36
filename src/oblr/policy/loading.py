"""Read a Hugging Face causal LM: its configuration, tokenizer and weights, from a folder or the hub."""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from oblr.errors import SettingError
from oblr.policy.attention import SDPA


def load_config(path: str, setting: str = "policy.path") -> PretrainedConfig:
    """Raises SettingError where ``path`` is neither a model folder nor a model id that the hub gives out."""
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        if Path(path).exists():
            raise SettingError(
                setting, f"{path} is not a model", "give a Hugging Face model folder with a config.json"
            ) from error
        raise SettingError(
            setting,
            f"no folder {path}, and the hub does not give out a model of that name",
            "check name and network",
        ) from error


def load_tokenizer(path: str, setting: str = "policy.path") -> PreTrainedTokenizerBase:
    """Raises SettingError where there is no tokenizer or it has no end-of-text token."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise SettingError(setting, f"{path} has no tokenizer", "add the tokenizer's files to the folder") from error
    if tokenizer.eos_token_id is None:
        raise SettingError(
            setting,
            f"the tokenizer of {path} has no end-of-text token",
            "set its eos_token: responses end with it",
        )
    return tokenizer


def load_model(path: str, dtype: str, attention: str = SDPA) -> PreTrainedModel:
    """The causal LM at ``path`` in ``dtype`` ("float32" or "bfloat16"), in training mode.

    Without dropout: a policy's probabilities are those that the engine samples from.
    """
    lm = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), attn_implementation=attention)
    return without_dropout(lm).train()


def without_dropout(lm: PreTrainedModel) -> PreTrainedModel:
    """Every probability of dropping something is 0: of layers of their own, and those that others keep as numbers."""
    for module in lm.modules():
        dropout = "drop" in type(module).__name__.lower()
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or (dropout and name == "p")):
                setattr(module, name, 0.0)
    return lm


def identity(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, end_ids: Sequence[int]) -> dict[str, Any]:
    """Tells policies apart whose weights a checkpoint has: digests of configuration and tokenizer, and end tokens."""
    described = config.to_dict()
    for name in ("_name_or_path", "transformers_version"):  # where it lies, and who reads it
        described.pop(name, None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = tokenizer.get_vocab() if backend is None else backend.to_str()
    return {
        "policy.path's config": _digest(described),
        "policy.path's tokenizer": _digest([vocabulary, tokenizer.special_tokens_map, tokenizer.chat_template]),
        "policy.path's end tokens": list(end_ids),
    }


def _digest(described: Any) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:12]


def weights_digest(path: str, config: PretrainedConfig) -> str:
    """Tells models apart: a Hub model's commit, or a hash of the safetensors files in a folder."""
    if not Path(path).is_dir():
        return str(getattr(config, "_commit_hash", None))
    digest = hashlib.sha256()
    for file in sorted(Path(path).glob("*.safetensors")):
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()


def stored_weights(path: str, setting: str = "policy.path") -> Iterator[tuple[str, Tensor]]:
    """The weights of the model at ``path`` as its safetensors files have them, under the names of its parameters.

    One at a time: nobody ever holds more than the largest.

    Raises:
        SettingError: the weights are not in safetensors files, or under other names than the model's parameters.
    """
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(load_config(path, setting))
    names = {name for name, _ in lm.named_parameters()}
    stored = reader(path, names, setting).read_metadata().storage_data
    files = sorted({place.relative_path for place in stored.values()})
    return (weight for file in files for weight in _tensors(file, names))


def _tensors(file: str, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, "pt") as weights:
        for name in set(names).intersection(weights.keys()):
            yield name, weights.get_tensor(name)


def reader(path: str, names: Collection[str], setting: str = "policy.path") -> HuggingFaceStorageReader:
    """Reads the safetensors files of a model; raises SettingError where they lack one of these weights."""
    folder = path if Path(path).is_dir() else snapshot_download(path, allow_patterns=["*.safetensors*", "*.json"])
    reader = HuggingFaceStorageReader(folder)
    if absent := set(names) - reader.read_metadata().state_dict_metadata.keys():
        raise SettingError(
            setting,
            f"{path} has no {min(absent)} in safetensors files",
            "write it anew with save_pretrained of transformers",
        )
    return reader
