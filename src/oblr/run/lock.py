"""One process at a time works in a folder."""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from oblr.errors import SettingError

#: In a folder that is worked in, or was; who holds it stands there.
LOCK = ".lock"
#: Of file systems that have no locks, such as Lustre mounted without them.
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


@contextmanager
def sole_user(folder: Path, setting: str = "paths.output_dir") -> Iterator[str]:
    """Hold the folder's lock; yields a line where its file system has none, and "" elsewhere.

    It is a lock of POSIX (:func:`fcntl.lockf`), which the kernel takes back from a process that ends, however it does,
    and which no child of it inherits. On NFS it holds between machines.

    Raises:
        SettingError: another process holds it; says which, and since when.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise SettingError(setting, f"{folder / LOCK} is a link, which no run makes", "take it away") from error
    try:
        yield _take(descriptor, folder, setting)
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path, setting: str) -> str:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return f"the file system of {folder} has no locks: see that no other process works there"
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise SettingError(
            setting, f"{_holder(descriptor)} works in {folder}", "wait for its end, or give another folder"
        ) from error
    me = {"host": os.uname().nodename, "pid": os.getpid(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(me).encode(), 0)
    return ""


def _holder(descriptor: int) -> str:
    """By what it has written into the file; on another machine its number means something else."""
    try:
        told = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {int(told['pid'])} on {told['host']!s:.64} (since {told['since']!s:.19})"
    except (ValueError, KeyError, TypeError):
        return "another process"
