"""Do weights, configuration and tokenizer of a model fit each other? Told without reading the weights.

What transformers says of weights that it lacks, cannot place or cannot fit is asked of a model without numbers, which
is given the headers of the safetensors files: milliseconds, before anything large is loaded.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from oblr.errors import SettingError, why
from oblr.policy.folder import Stored, headers, silent, weight_files

#: What weights may be stored in, by safetensors' names; others are numbers of a quantisation, without its scales.
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: Rows of two weights that are compared at once.
ROWS = 4096
#: What helps where weights have other names or shapes than they should.
ANEW = "write it anew with save_pretrained of transformers"
MIXED = "take config.json and weights of one model"


def without_numbers(config: PretrainedConfig, path: str, setting: str = "policy.path") -> PreTrainedModel:
    """The causal LM of a configuration, on no device; raises SettingError where there is no such model."""
    try:
        with torch.device("meta"), silent():
            return AutoModelForCausalLM.from_config(config)
    except Exception as error:  # whatever a number out of range leads to
        raise SettingError(
            setting, f"the config.json of {path} makes no causal LM: {why(error)}", "mend it, or give another model"
        ) from error


def check_weights(path: str, config: PretrainedConfig, setting: str = "policy.path", by_name: bool = False) -> None:
    """Whether the files of the model at ``path`` have all weights that its configuration asks for, and no others.

    What transformers leaves out without a word may be there: tables of positions that are computed, and what a type of
    model lists as not loaded. Any other weight without a place is of another function than the configuration says.

    Args:
        by_name: whether the weights are read under the names of the parameters, not under those that transformers
            translates into them: those of a sharded policy, and those that an engine is sent.

    Raises:
        SettingError: weights are missing, left over, of other shapes, no plain numbers, or differ where they are tied.
    """
    bare = without_numbers(config, path, setting)
    if (quantised := getattr(config, "quantization_config", None)) is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised.quant_method
        raise SettingError(
            setting, f"the weights of {path} are quantised ({method})", "give the model that it is made of"
        )
    if getattr(config, "transformers_weights", None) is not None:
        raise SettingError(setting, f"the config.json of {path} names a file of weights itself", "take that out")
    stored = headers(weight_files(path, setting), setting)
    names = dict(bare.named_parameters())
    odd = {name: dtype for name, (_, dtype, _) in stored.items() if name in names and dtype not in FLOATS}
    if odd:
        name = min(odd)
        raise SettingError(setting, f"{name} in {path} is stored as {odd[name]}", "give weights in floating point")
    numberless = {
        name: torch.empty(shape, dtype=FLOATS.get(dtype, torch.float32), device="meta")
        for name, (_, dtype, shape) in stored.items()
    }
    try:
        with silent():
            lm, found = cast(Any, type(bare)).from_pretrained(
                None,
                config=copy.deepcopy(config),  # it is written into
                state_dict=numberless,
                device_map={"": "meta"},
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # of a conversion of names, whose numbers do not fit
        raise SettingError(setting, f"the weights of {path} do not fit its config.json: {why(error)}", MIXED) from error
    ties = lm.all_tied_weights_keys
    found["missing_keys"] = [name for name in found["missing_keys"] if ties.get(name) not in found["missing_keys"]]
    _judge(path, setting, found, len(names))
    _check_ties(path, setting, lm, stored)
    if by_name and (absent := names.keys() - stored.keys()):
        raise SettingError(setting, f"{path} has no {min(absent)} in safetensors files", ANEW)


def _judge(path: str, setting: str, found: Mapping[str, Sequence[Any]], count: int) -> None:
    """Raises SettingError for what transformers says of weights that it has loaded."""
    missing, extra, odd = (sorted(found[f"{kind}_keys"], key=str) for kind in ("missing", "unexpected", "mismatched"))
    if odd:
        name, stored, expected = odd[0]
        raise SettingError(
            setting,
            f"{name} of {path} is {list(stored)} in its weights and {list(expected)} by its config.json{_more(odd)}",
            MIXED,
        )
    if missing:
        there = f"; it has {extra[0]}{_more(extra)} instead" if extra else ""
        tied = missing == ["lm_head.weight"]
        raise SettingError(
            setting,
            f"{path} has no {missing[0]}{_more(missing)} of {count} weights in safetensors files{there}",
            "set tie_word_embeddings in its config.json if the head is the embedding" if tied else ANEW,
        )
    if extra:
        raise SettingError(
            setting,
            f"{path} has {extra[0]}{_more(extra)}, for which its config.json has no place",
            "take it out of the file, or " + MIXED,
        )


def _more(names: Sequence[object]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _check_ties(path: str, setting: str, lm: PreTrainedModel, stored: Mapping[str, Stored]) -> None:
    """Weights that are one by the configuration may be stored twice if they are the same."""
    prefix = f"{lm.base_model_prefix}."
    for pair in lm.all_tied_weights_keys.items():
        names = [name if name in stored else name.removeprefix(prefix) for name in pair]
        if stored.keys() >= set(names) and not _equal(*((stored[name], name) for name in names)):
            raise SettingError(
                setting,
                f"{names[0]} and {names[1]} of {path} differ, and are one weight by its config.json",
                "set tie_word_embeddings to false there",
            )


def _equal(one: tuple[Stored, str], other: tuple[Stored, str]) -> bool:
    (file, _, shape), (other_file, _, other_shape) = one[0], other[0]
    if shape != other_shape:
        return False
    with safe_open(file, "pt") as a, safe_open(other_file, "pt") as b:
        first, second = a.get_slice(one[1]), b.get_slice(other[1])
        starts = range(0, shape[0], ROWS)
        return all(bool((first[s : s + ROWS] == second[s : s + ROWS]).all()) for s in starts)


def check_vocabulary(
    path: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, setting: str = "policy.path"
) -> int:
    """Rows of the embedding, which must be as many as ids that texts have; prompts are looked at one by one.

    A tokenizer may know tokens beyond, of pictures for one, that no text of a run has.

    Raises:
        SettingError: the tokenizer has ids beyond the embedding's rows.
    """
    embedding: Tensor = without_numbers(config, path, setting).get_input_embeddings().weight  # type: ignore[assignment]
    rows = embedding.shape[0]
    added = set(tokenizer.added_tokens_decoder) - {tokenizer.eos_token_id}  # a response ends with that one
    beyond = {id: text for text, id in tokenizer.get_vocab().items() if id >= rows and id not in added}
    if beyond:
        raise SettingError(
            setting,
            f"the tokenizer of {path} has ids up to {max(beyond)}, and its embedding {rows} rows",
            "take tokenizer and weights of one model",
        )
    return rows


def is_finite(weight: Tensor) -> bool:
    """Whether it has neither NaN nor infinite numbers; without a second array of its size."""
    return weight.numel() == 0 or bool(torch.stack(torch.aminmax(weight.detach())).isfinite().all())


def not_finite(path: str, name: str, setting: str) -> SettingError:
    return SettingError(setting, f"{name} of {path} has NaN or infinite numbers", "give a model that is whole")
