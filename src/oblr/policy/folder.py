"""The files of a model's folder: whether they can be read, and which of them have its weights."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from transformers.utils import logging

from oblr.errors import SettingError, why

WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
#: Files of a folder that hold an object, where they are there.
OBJECTS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
#: What Git has in place of a large file that it has not fetched.
POINTER = b"version https://git-lfs"

#: File, dtype by safetensors' name, and shape of a weight.
Stored = tuple[Path, str, list[int]]


def check_files(path: str, setting: str) -> None:
    """Whether the small files of the folder ``path`` can be read; nothing where it is no folder.

    Raises:
        SettingError: one is a pointer of Git LFS, cannot be read, or holds no object; or it is an adapter's folder.
    """
    if (Path(path) / ADAPTER).is_file():
        raise SettingError(
            setting,
            f"{path} holds an adapter, no whole model",
            "merge it into its base model (merge_and_unload of peft)",
        )
    for file in (Path(path) / name for name in OBJECTS):
        if file.is_file():
            _object(file, setting)


def _object(file: Path, setting: str) -> dict[str, object]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SettingError(setting, f"cannot read {file}: {error.strerror}", "change its permissions") from error
    if data.startswith(POINTER):
        raise _pointer(file, setting)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SettingError(setting, f"{file} is no JSON: {why(error)}", "get it anew") from error
    if not isinstance(content, dict):
        raise SettingError(setting, f"{file} holds no JSON object, but {type(content).__name__}", "get it anew")
    return content


def _pointer(file: Path, setting: str) -> SettingError:
    return SettingError(
        setting, f"{file} is a pointer of Git LFS, not the file itself", "run git lfs pull in its folder"
    )


def whole_folder(path: str, setting: str) -> Path:
    """``path``, or where the Hub's files of that name are, fetched if need be."""
    if Path(path).is_dir():
        return Path(path)
    try:
        return Path(snapshot_download(path, allow_patterns=["model*.safetensors", "*.json"]))
    except (OSError, ValueError) as error:
        raise SettingError(
            setting, f"cannot get the files of {path}: {why(error)}", "check name and network"
        ) from error


def has_weights(path: str) -> bool:
    """Whether the folder has weights of any kind; one that is planned with need not."""
    return any(any(Path(path).glob(f"*.{kind}")) for kind in ("safetensors", "bin", "pt", "pth")) or any(
        Path(path).glob(INDEX)
    )


def weight_files(path: str, setting: str = "policy.path") -> list[Path]:
    """The safetensors files of the model at ``path``: those that transformers reads, in the order of their names.

    Raises:
        SettingError: there are none, or some are absent.
    """
    folder = whole_folder(path, setting)
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        places = _object(folder / INDEX, setting).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
            raise SettingError(setting, f"{folder / INDEX} says of no weight where it is", "get it anew")
        files = [folder / name for name in sorted(set(places.values()))]
        if absent := [file.name for file in files if not file.is_file()]:
            raise SettingError(
                setting, f"{path} lacks {absent[0]}, one of the {len(files)} files that its index names", "get it anew"
            )
        return files
    if any(folder.glob("*.safetensors")):
        raise SettingError(
            setting, f"{path} has safetensors files, but neither {WEIGHTS} nor {INDEX}", "get all of its files"
        )
    if any(any(folder.glob(f"*.{kind}")) for kind in ("bin", "pt", "pth")):
        raise SettingError(
            setting,
            f"{path} has no weights in safetensors files, only pickled ones, which may run code when they are read",
            "write it anew with save_pretrained of transformers",
        )
    raise SettingError(setting, f"{path} has no weights in safetensors files", f"add its {WEIGHTS}")


def headers(files: Sequence[Path], setting: str) -> dict[str, Stored]:
    """What the files say of each weight that they hold.

    Raises:
        SettingError: a file is not whole, or two have the same weight.
    """
    found: dict[str, Stored] = {}
    for file in files:
        try:
            with file.open("rb") as start:
                if start.read(len(POINTER)) == POINTER:
                    raise _pointer(file, setting)
            with safe_open(file, "pt") as weights:
                own = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
                if twice := min(own.keys() & found.keys(), default=None):
                    raise SettingError(setting, f"{file} has {twice}, and so has {found[twice][0].name}", "get it anew")
                found |= {name: (file, part.get_dtype(), part.get_shape()) for name, part in own.items()}
        except SafetensorError as error:
            raise SettingError(setting, f"{file} is no whole safetensors file: {why(error)}", "get it anew") from error
        except OSError as error:
            raise SettingError(setting, f"cannot read {file}: {why(error)}", "change its permissions") from error
    return found


@contextmanager
def silent() -> Iterator[None]:
    """transformers neither warns nor shows how far it is: what it would say is said in our own line."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
