"""Files and folders that get their names when all that belongs to them is on the disk."""

import os
import shutil
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(path: Path) -> None:
    """Wait until a file, or a folder with all that it holds, is on the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            if not (own := Path(folder, name)).is_symlink():
                sync(own)
        sync(Path(folder))
    if path.is_file():
        sync(path)


def put(unfinished: Path, place: Path) -> None:
    """Give what is written its name, once it is on the disk; what had that name is there until then.

    A folder cannot be exchanged at once: the one before lies beside it as ``<name>.old`` for a moment.
    """
    sync_all(unfinished)
    before = place.with_name(f"{place.name}.old")
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(before, ignore_errors=True)
        place.rename(before)
    unfinished.replace(place)
    sync(place.parent)
    shutil.rmtree(before, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that others see with all of its content or not at all, and that a loss of power leaves whole."""
    _write(path, content, 0o666)


def write_private(path: Path, content: str | bytes) -> None:
    """The same of a file that is for the user's eyes alone, as one that holds a configuration."""
    _write(path, content, 0o600)


def _write(path: Path, content: str | bytes, mode: int) -> None:
    """``mode``: who may do what with the file, as far as the process's mask allows."""
    unfinished = path.with_name(f"{path.name}.{os.uname().nodename}-{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    put(unfinished, path)
