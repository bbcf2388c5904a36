"""One process at a time works in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from oblr.errors import SettingError


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system takes back from a process that ends, however it does.

    Raises:
        SettingError: another process holds it.
    """
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise SettingError(
            "paths.output_dir", f"another process works in {folder}", "wait for its end, or give another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()
