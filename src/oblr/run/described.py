"""The description of a checkpoint's tensors, read as plain values.

:mod:`torch.distributed.checkpoint` writes it as a pickle, and a pickle may call whatever it names. This reader knows
the few names that torch writes, and has records without any code in their places. Out of those the description is
made anew, of numbers, names and dtypes that have been looked at.
"""

import io
import pickle
from collections.abc import Collection
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

_METADATA, _FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
#: What has attributes.
_RECORDS = {
    *((_METADATA, name) for name in ("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata")),
    *((_METADATA, name) for name in ("MetadataIndex", "StorageMeta")),
    (_FILES, "_StorageInfo"),
}
#: What is called, on plain values.
_CALLED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    *(("pathlib", name) for name in ("Path", "PosixPath", "PurePosixPath")),
    *(("pathlib._local", name) for name in ("Path", "PosixPath")),
}


def described(content: bytes, files: Collection[str]) -> Metadata:
    """What the file ``.metadata`` says: of each tensor dtype, shape and pieces, and of each piece where it lies.

    Args:
        files: the names of those that a tensor may lie in.

    Raises:
        Exception: of any class, where it is not what torch writes for a folder of tensors in such files.
    """
    reader = _Reader(io.BytesIO(content))
    found = _fields(reader.load(), "Metadata")
    tensors = {_text(name): _tensor(entry) for name, entry in found["state_dict_metadata"].items()}
    places = dict(_place(index, info, files) for index, info in found["storage_data"].items())
    for name, tensor in tensors.items():
        for chunk in tensor.chunks:
            if MetadataIndex(name, chunk.offsets) not in places:
                raise ValueError(f"nothing says where {name} lies")
    own = {name: (name,) for name in tensors}
    return Metadata(tensors, own, places, StorageMeta(), str(found.get("version")))  # type: ignore[arg-type]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECORDS:
            return type(name, (_Record,), {})  # one of its own each time: what is done to it is done to nothing else
        if (module, name) in _CALLED:
            return lambda *given: given
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


class _Record:
    def __setstate__(self, state: Any) -> None:
        self.__dict__["state"] = state


def _fields(record: Any, name: str) -> dict[str, Any]:
    if not isinstance(record, _Record) or type(record).__name__ != name or not isinstance(record.state, dict):  # type: ignore[attr-defined]
        raise TypeError(f"there is no {name}")
    return record.state  # type: ignore[attr-defined, no-any-return]


def _tensor(record: Any) -> TensorStorageMetadata:
    entry = _fields(record, "TensorStorageMetadata")
    properties = entry["properties"]
    if not isinstance(properties, _Record) or not isinstance(dtype := properties.state[0], torch.dtype):  # type: ignore[attr-defined]
        raise TypeError("a tensor has no dtype")
    chunks = [_fields(chunk, "ChunkStorageMetadata") for chunk in entry["chunks"]]
    return TensorStorageMetadata(
        TensorProperties(dtype),
        _size(entry["size"]),
        [ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks],
    )


def _place(index: Any, info: Any, files: Collection[str]) -> tuple[MetadataIndex, _StorageInfo]:
    key, place = _fields(index, "MetadataIndex"), _fields(info, "_StorageInfo")
    if place.get("transform_descriptors"):
        raise ValueError("a tensor is packed")
    if (name := _text(place["relative_path"])) not in files:
        raise ValueError(f"a tensor lies in {name}, which is none of the checkpoint's files")
    number = key.get("index")
    whose = MetadataIndex(_text(key["fqn"]), _size(key["offset"]), None if number is None else _count(number))
    return whose, _StorageInfo(name, _count(place["offset"]), _count(place["length"]))


def _size(given: Any) -> torch.Size:
    """Of the arguments that ``torch.Size`` was called with."""
    if not isinstance(given, tuple) or len(given) != 1 or not isinstance(given[0], tuple | list):
        raise TypeError("a shape is none")
    return torch.Size([_count(n) for n in given[0]])


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise TypeError(f"{number!r:.40} is no count")
    return number


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r:.40} is no name")
    return value
