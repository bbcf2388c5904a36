"""Reading takes no more memory than a file of its size may need, whatever has been packed into it.

The kernel holds the limit, so that it holds for every format and every library: a small file that unpacks to gigabytes
is refused when it has taken what it may, and the machine is as it was.
"""

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oblr.errors import SettingError

MIB = 2**20
#: Bytes that reading any file may take, and for each byte of larger ones; and for what is not here yet.
LEAST, EACH, UNKNOWN = 512 * MIB, 100, 16_384 * MIB
#: For the stacks of threads that a library starts, one a processor.
STACK = 16 * MIB


@contextmanager
def bounded(path: str, limit_mib: int | None) -> Iterator[None]:
    """A limit on the memory of reading ``path``: ``limit_mib``; None: what a file or folder of its size may take.

    Raises:
        SettingError: it takes more, or would wait for ever, as a pipe does.
    """
    check_kind(path)
    limit = min(MIB * limit_mib if limit_mib else _usual(path), _available())
    hardest = resource.getrlimit(resource.RLIMIT_DATA)[1]
    before = resource.getrlimit(resource.RLIMIT_DATA)[0]
    wanted = _taken() + limit + STACK * (os.cpu_count() or 1)
    bounds = [bound for bound in (wanted, before, hardest) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hardest))
    too_much = False
    try:
        yield
    except MemoryError:
        too_much = True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hardest))
    if too_much:  # not from within the exception, whose traceback holds all that has been read
        raise SettingError(
            "data.limit_mib",
            f"reading {path} takes more than {limit // MIB:,} MiB",
            "give it unpacked or in parts, or a larger limit if it is to be trusted",
        )


def check_kind(path: str) -> None:
    """Raises SettingError where ``path`` is neither a file nor a folder, as a pipe, a device or a socket."""
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError):  # the Hub's, or missing: whoever reads it says so
        return
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise SettingError("data.path", f"{path} is no regular file", "give one")


def out_of_memory(error: BaseException | None) -> bool:
    """Whether this is what a library has made of a lack of memory."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _usual(path: str) -> int:
    if not Path(path).exists():
        return UNKNOWN
    files = [Path(path)] if Path(path).is_file() else [file for file in Path(path).rglob("*") if file.is_file()]
    stats = [file.stat() for file in files]
    return max(LEAST, EACH * sum(min(one.st_size, 512 * one.st_blocks) for one in stats))  # holes are on no disk


def _taken() -> int:
    """Bytes that the limit counts now."""
    return 1024 * _number(Path("/proc/self/status"), "VmData:")


def _available() -> int:
    return 1024 * _number(Path("/proc/meminfo"), "MemAvailable:")


def _number(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(name))
