"""Read a Hugging Face causal LM: its configuration, tokenizer and weights, from a folder or the hub."""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from oblr.errors import SettingError, why
from oblr.policy.attention import SDPA
from oblr.policy.fit import ANEW, check_weights, is_finite, not_finite, without_numbers
from oblr.policy.folder import check_files, silent, weight_files


def load_config(path: str, setting: str = "policy.path") -> PretrainedConfig:
    """Raises SettingError where ``path`` is neither a model folder nor a model id that the hub gives out."""
    check_files(path, setting)
    try:
        with silent():
            return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # of a number of the wrong kind too, which has an error of its own
        if "trust_remote_code" in str(error):
            raise SettingError(
                setting, f"{path} is of a type that brings code of its own, which is not run", "give another model"
            ) from error
        if Path(path).exists():
            problem = f"{path} is not a model: {why(error)}"
            raise SettingError(setting, problem, "give a Hugging Face model folder with a config.json") from error
        raise SettingError(
            setting,
            f"no folder {path}, and the hub does not give out a model of that name",
            "check name and network",
        ) from error


def load_tokenizer(path: str, setting: str = "policy.path") -> PreTrainedTokenizerBase:
    """Raises SettingError where there is no tokenizer or it has no end-of-text token."""
    check_files(path, setting)
    try:
        with silent():
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            tokenizer.decode(tokenizer.encode("1 + 1 ="))  # some numbers are looked at when they are used
    except Exception as error:  # tokenizers raise errors of no class of their own
        raise SettingError(
            setting,
            f"{path} has no tokenizer that can be read: {why(error)}",
            "add the tokenizer's files to the folder",
        ) from error
    if tokenizer.get_vocab().keys() <= {str(token) for token in tokenizer.added_tokens_decoder.values()}:
        # transformers makes one of the type's class, without a vocabulary, where the files are absent
        raise SettingError(setting, f"{path} has no tokenizer", "add the tokenizer's files to the folder")
    if tokenizer.eos_token_id is None:
        raise SettingError(
            setting,
            f"the tokenizer of {path} has no end-of-text token",
            "set its eos_token: responses end with it",
        )
    return tokenizer


def load_model(path: str, dtype: str, attention: str = SDPA, setting: str = "policy.path") -> PreTrainedModel:
    """The causal LM at ``path`` in ``dtype`` ("float32" or "bfloat16"), in training mode.

    Without dropout: a policy's probabilities are those that the engine samples from.

    Raises:
        SettingError: its weights do not fit its configuration, or are no finite numbers.
    """
    config = load_config(path, setting)
    check_weights(path, config, setting)
    lm = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation=attention,
        use_safetensors=True,
        trust_remote_code=False,
    )
    for name, p in lm.named_parameters():
        if not is_finite(p):
            raise not_finite(path, name, setting)
    return without_dropout(lm).train()


def checkpoint_blocks(lm: PreTrainedModel, every: int) -> None:
    """Have every so many-th block, from the first on, computed again in the backward pass; none if 0.

    Raises:
        SettingError: the model cannot, or not with some of its blocks.
    """
    if not every:
        return
    setting = "policy.activation_checkpointing"
    try:
        lm.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)
    except ValueError as error:
        raise SettingError(setting, str(error), "use false") from error
    blocks = [
        module.gradient_checkpointing for module in lm.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if every > 1 and (not blocks or blocks != [i % every == 0 for i in range(len(blocks))]):
        raise SettingError(setting, f"{type(lm).__name__} does not tell its blocks apart", "use true or false")


def without_dropout(lm: PreTrainedModel) -> PreTrainedModel:
    """Every probability of dropping something is 0: of layers of their own, and those that others keep as numbers."""
    for module in lm.modules():
        dropout = "drop" in type(module).__name__.lower()
        for name, value in list(vars(module).items()):
            number = isinstance(value, float | int) and not isinstance(value, bool)
            if number and ("drop" in name or (dropout and name == "p")):
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


def weights_digest(path: str, config: PretrainedConfig, setting: str = "policy.path") -> str:
    """Tells models apart: a Hub model's commit, or a hash of the safetensors files in a folder."""
    if not Path(path).is_dir():
        return str(getattr(config, "_commit_hash", None))
    digest = hashlib.sha256()
    for file in weight_files(path, setting):
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()


def stored_weights(path: str, setting: str = "policy.path") -> Iterator[tuple[str, Tensor]]:
    """The weights of the model at ``path`` as its safetensors files have them, under the names of its parameters.

    One at a time: nobody ever holds more than the largest.

    Raises:
        SettingError: the weights are not in safetensors files, or under other names than the model's parameters, or do
            not fit its configuration.
    """
    config = load_config(path, setting)
    check_weights(path, config, setting, by_name=True)
    names = {name for name, _ in without_numbers(config, path, setting).named_parameters()}
    files = weight_files(path, setting)
    return (weight for file in files for weight in _tensors(file, names))


def check_numbers(path: str, setting: str = "policy.path") -> None:
    """Raises SettingError where a weight has NaN or infinite numbers; reads them all."""
    for name, weight in stored_weights(path, setting):
        if not is_finite(weight):
            raise not_finite(path, name, setting)


def _tensors(file: Path, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, "pt") as weights:
        for name in set(names).intersection(weights.keys()):
            yield name, weights.get_tensor(name)


class _Only(FileSystem):
    """Shows these files of a folder, whatever else lies there."""

    def __init__(self, files: Sequence[Path]):
        self.files = [str(file) for file in files]

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        return self.files


def reader(path: str, names: Collection[str], setting: str = "policy.path") -> HuggingFaceStorageReader:
    """Reads the safetensors files of a model; raises SettingError where they lack one of these weights."""
    files = weight_files(path, setting)
    reader = HuggingFaceStorageReader(str(files[0].parent))
    reader.fs = _Only(files)
    if absent := set(names) - reader.read_metadata().state_dict_metadata.keys():
        raise SettingError(setting, f"{path} has no {min(absent)} in safetensors files", ANEW)
    return reader
