"""Write a policy as a folder that transformers and vLLM load: tried before a run starts, and never lost at its end."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from oblr.errors import SettingError, why
from oblr.policy.folder import WEIGHTS, silent
from oblr.policy.loading import load_config, load_tokenizer


def write(lm: PreTrainedModel, weights: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Weights, configuration, tokenizer, and how the folder that the policy comes from would be sampled from.

    The latter is handed on as it is: transformers reads some that it refuses to write, a temperature without
    ``do_sample`` for one, and no sampling of ours depends on it.
    """
    own, lm.generation_config = lm.generation_config, GenerationConfig()
    try:
        lm.save_pretrained(folder, state_dict=dict(weights))
    finally:
        lm.generation_config = own
    own.to_json_file(folder / "generation_config.json", use_diff=True, keys_to_pop=["compile_config"])
    tokenizer.save_pretrained(folder)


def write_weights(lm: PreTrainedModel, weights: Mapping[str, Tensor], folder: Path) -> None:
    """What can be written without any help of transformers: weights, and the configuration if it can be."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / WEIGHTS, {"format": "pt"})
    (folder / "config.json").write_text(lm.config.to_json_string(use_diff=False))


def try_export(
    path: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, setting: str = "policy.path"
) -> None:
    """Write all but the weights of the model at ``path`` to a folder that goes again, and read it.

    Raises:
        SettingError: something cannot be written, or not be read then.
    """
    try:
        with TemporaryDirectory() as folder, silent():
            config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            load_config(folder, setting)
            load_tokenizer(folder, setting)
    except OSError:  # the disk's, which is said as such
        raise
    except Exception as error:
        raise SettingError(
            setting, f"what is trained of {path} could not be written at the end: {why(error)}", "mend its folder"
        ) from error
