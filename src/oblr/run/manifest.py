"""Which checkpoints a folder holds, in their order, and which are whole, by the manifest that each gets last.

They are ordered by the number of the run that has written them, which grows each time that it goes on, and by their
step: no clock has a say. A run that goes on from an earlier checkpoint than its newest leaves the later ones behind.
Its own come after them.
"""

import functools
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MANIFEST = "manifest.json"
#: Of a file: ``size`` in bytes and ``sha256``.
Digest = Mapping[str, Any]


class Order(NamedTuple):
    """Where a checkpoint stands: in the attempt that has written it, a number that only grows, and its step."""

    attempt: int
    step: int


#: After every attempt that has a number: of a checkpoint whose manifest cannot be read, nobody knows that it is old.
UNKNOWN = sys.maxsize


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    files: dict[str, Digest]
    order: Order

    def written(self) -> str:
        return json.dumps({**self.order._asdict(), "files": self.files}, indent=1)


def read_manifest(folder: Path) -> Manifest:
    """Of a checkpoint; those of earlier versions have files alone.

    Raises:
        OSError: there is none.
        ValueError: it is not what a run writes.
    """
    found = json.loads((folder / MANIFEST).read_text())
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    earlier = "files" not in found
    files = found if earlier else found["files"]
    attempt, step = (0, _step(folder)) if earlier else (found.get("attempt"), found.get("step"))
    if type(attempt) is not int or type(step) is not int or min(attempt, step) < 0:
        raise ValueError("its place in the order is no number")
    if not isinstance(files, dict) or not files or not all(_is_entry(name, entry) for name, entry in files.items()):
        raise ValueError("it does not name files of this folder with size and digest")
    return Manifest(files, Order(attempt, step))


def _is_entry(name: str, entry: Any) -> bool:
    """Whether it names a file in the folder itself, and says of it what there is to say."""
    plain = not re.search(r"[/\\\0]", name) and name not in ("", ".", "..", MANIFEST)
    if not plain or not isinstance(entry, dict) or entry.keys() != {"size", "sha256"}:
        return False
    size, digest = entry["size"], entry["sha256"]
    return type(size) is int and size >= 0 and isinstance(digest, str) and bool(re.fullmatch("[0-9a-f]{64}", digest))


def _step(folder: Path) -> int:
    """By the name."""
    found = re.match(r"step-(\d+)", folder.name)
    return int(found[1]) if found else 0


def order_of(folder: Path) -> Order:
    """Where a checkpoint stands; one whose manifest cannot be read after all others of its step."""
    try:
        return read_manifest(folder).order
    except (OSError, ValueError, RecursionError):
        return Order(UNKNOWN, _step(folder))


def is_complete(folder: Path) -> bool:
    """Whether every file is there in its full size; :func:`damaged` looks at the content."""
    try:
        files = read_manifest(folder).files
    except (OSError, ValueError, RecursionError):
        return False
    return all((found := _file(folder / name)) and found.st_size == files[name]["size"] for name in files)


def _file(path: Path) -> os.stat_result | None:
    """None where it is no plain file: a link may lead anywhere."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def damaged(folder: Path) -> list[str]:
    """Names of the files that are not what was written; reads them all, once as long as they stay as they are."""
    try:
        files = read_manifest(folder).files
    except (OSError, ValueError, RecursionError):
        return [MANIFEST]
    found = {name: _file(folder / name) for name in files}
    odd = [name for name, own in found.items() if own is None or own.st_size != files[name]["size"]]
    if odd:
        return odd
    seen = tuple((name, files[name]["sha256"], *_state(own)) for name, own in found.items() if own is not None)
    return list(_damaged(folder, seen))


def _state(found: os.stat_result) -> tuple[int, int, int]:
    """Changes when a file does."""
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


@functools.lru_cache(maxsize=8)
def _damaged(folder: Path, seen: tuple[tuple[Any, ...], ...]) -> tuple[str, ...]:
    with ThreadPoolExecutor(min(len(seen), os.cpu_count() or 1)) as threads:
        digests = threads.map(lambda entry: digest(folder / entry[0])["sha256"], seen)
        return tuple(entry[0] for entry, own in zip(seen, digests, strict=True) if own != entry[1])


def digest(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return {"size": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def found(folder: Path) -> list[Path]:
    """All checkpoints in ``folder``, whole or not, the newest last."""
    return sorted(folder.glob("*.ckpt"), key=lambda path: (order_of(path), path.name))


def by_age(folder: Path) -> list[Path]:
    """The complete checkpoints in ``folder``, the newest last."""
    return [path for path in found(folder) if is_complete(path)]


def next_attempt(folder: Path) -> int:
    """A number that is larger than those of all checkpoints in ``folder``."""
    attempts = [order.attempt for order in map(order_of, folder.glob("*.ckpt")) if order.attempt != UNKNOWN]
    return 1 + max(attempts, default=0)


def following(folder: Path) -> Order:
    """The place after all checkpoints in ``folder``, for one that nobody has given another."""
    places = [order for order in map(order_of, folder.glob("*.ckpt")) if order.attempt != UNKNOWN]
    last = max(places, default=Order(1, 0))
    return Order(last.attempt, last.step + 1)


def before(folder: Path) -> Path | None:
    """The newest whole checkpoint beside this one that is of no later step: what the run had come from."""
    step = order_of(folder).step
    earlier = [path for path in by_age(folder.parent) if path != folder and order_of(path).step <= step]
    return next((path for path in reversed(earlier) if not damaged(path)), None)


def outdated(folder: Path, keep: int, own: str = "step-*.ckpt") -> list[Path]:
    """What may go now that the newest checkpoint in ``folder`` is on the disk, and what was left half-written.

    Of those that are older in both, attempt and step, all but the ``keep`` newest, itself included. A later step that
    was left behind by going back stays until the run has come as far again.

    Args:
        own: whatever has other names is somebody else's.
    """
    whole = [path for path in by_age(folder) if path.match(own)]
    if not whole:
        return []
    newest = order_of(whole[-1])
    kept = [path for path in whole if order_of(path).step <= newest.step][-keep:]
    gone = [path for path in folder.glob(own) if path not in kept and order_of(path).step <= newest.step]
    return [*gone, *folder.glob(f"{own}.part"), *folder.glob(f"{own}.old")]
