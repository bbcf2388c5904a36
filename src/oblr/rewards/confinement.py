"""What processes that score can reach: nothing but code, and a scratch folder of their own.

Three levels, the best that works here:

- ``namespaces``: bubblewrap gives each of them processes, files and a network of its own, of which there is none.
- ``landlock``: the kernel's Landlock says which files they may open, and a filter which calls they may make.
- ``limits``: on time and memory alone. A reward that runs text is refused.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from oblr.rewards import lockdown

Level = Literal["namespaces", "landlock", "limits"]
LEVELS: tuple[Level, ...] = ("namespaces", "landlock", "limits")
#: In words, for the start of a run.
WORDS = {
    "namespaces": "rewards     confined by namespaces (bwrap): no network, no files but code and a scratch folder",
    "landlock": "rewards     confined by Landlock and seccomp: no network, no files but code and a scratch folder",
    "limits": "rewards     not confined: neither bwrap nor Landlock works here, only limits on time and memory",
}
TRUSTED = "rewards     not confined, as `trust` says: they have your rights, within limits on time and memory"
#: What every program needs.
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store", "/sys/devices/system/cpu")
ETC = "alternatives fonts group ld.so.cache ld.so.conf ld.so.conf.d localtime mime.types nsswitch.conf passwd timezone"
#: Variables that are passed on; all others stay with the run.
PASSED = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONWARNINGS", "MALLOC_ARENA_MAX")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
#: Where a process in namespaces has its scratch folder.
SCRATCH = "/scratch"
#: Bytes that it may hold.
SCRATCH_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Confinement:
    """How a process that scores is started, and what it has to give up first.

    Attributes:
        scratch: the folder that it may write to.
        readable: what it may read under ``landlock``.
        calls: its filter of system calls, if it has one.
        processes: whether it may start any.
        trusted: whether it keeps the run's environment.
    """

    level: Level
    scratch: str
    readable: list[str] = field(default_factory=list)
    calls: bytes | None = None
    processes: bool = False
    trusted: bool = False

    def command(self, program: Sequence[str]) -> list[str]:
        """The command line that runs a program so."""
        if self.level != "namespaces":
            return list(program)
        binds = [part for path in self.readable for part in ("--ro-bind-try", path, path)]
        return [*_bubble(), *binds, "--remount-ro", "/dev", "--remount-ro", "/", *program]

    def environment(self) -> dict[str, str]:
        """Its variables: none that is not known to be harmless."""
        kept = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith("LC_")}
        own = {"HOME": self.scratch, "TMPDIR": self.scratch, "HF_HUB_OFFLINE": "1"}
        return (dict(os.environ) if self.trusted else kept | own) | {
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }


def confinement(
    level: Level, scratch: str, extra: Sequence[str] = (), processes: bool = True, trusted: bool = False
) -> Confinement:
    """Of a level that is :func:`available`.

    Args:
        scratch: an empty folder, for the levels that cannot make their own.
        extra: what may be read besides code.
        processes: whether the reward may start any.
        trusted: whether it keeps the run's environment.
    """
    if level == "namespaces":
        calls = lockdown.seccomp_filter(True, True, processes)
        return Confinement(level, SCRATCH, readable(extra), calls, processes)
    if level == "landlock":
        signals = lockdown.landlock_version() >= lockdown.KEEPS_SIGNALS
        calls = lockdown.seccomp_filter(False, signals, processes)
        return Confinement(level, scratch, readable(extra), calls, processes)
    return Confinement(level, scratch, processes=processes, trusted=trusted)


@cache
def available(level: Level) -> bool:
    """Whether it works here: bwrap may be there and not be allowed to do anything."""
    if level == "limits":
        return True
    if not lockdown.LINUX or lockdown.seccomp_filter(True, True, True) is None:
        return False
    if level == "landlock":
        return lockdown.landlock_version() >= lockdown.OLDEST
    if shutil.which("bwrap") is None:
        return False
    try:
        there = [part for path in SYSTEM for part in ("--ro-bind-try", path, path)]
        tried = subprocess.run(
            [*_bubble(), *there, "--remount-ro", "/dev", "--remount-ro", "/", shutil.which("true") or "/bin/true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def best() -> Level:
    """The best level that works here."""
    return next(level for level in LEVELS if available(level))


def _bubble() -> list[str]:
    size = ["--size", str(SCRATCH_BYTES), "--tmpfs"]
    apart = [f"--unshare-{what}" for what in ("user", "ipc", "pid", "net", "uts")]
    places = ["--proc", "/proc", "--dev", "/dev", *size, "/dev/shm", *size, SCRATCH]
    return ["bwrap", *apart, "--cap-drop", "ALL", "--as-pid-1", "--hostname", "reward", *places]


def readable(extra: Sequence[str] = ()) -> list[str]:
    """Files and folders of code: the system's, Python's, and what this process imports; the outer ones first."""
    code = {sys.prefix, sys.base_prefix, sys.base_exec_prefix, str(Path(sys.executable).resolve().parent)}
    code |= {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    code |= {*map(os.path.abspath, sys.path), *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)} - {""}
    code |= set(_elsewhere(code))
    found = {*SYSTEM, *(f"/etc/{name}" for name in ETC.split()), *map(os.path.abspath, extra)}
    for path in {*code, *map(os.path.realpath, code)}:
        found |= set(_visible(path))
    found = {path for path in found if os.path.exists(path) and path != "/"}
    return sorted(found, key=lambda path: (path.count("/"), path))


def _elsewhere(code: set[str]) -> Iterator[str]:
    """Packages that were imported from folders which are on no path, as editable ones."""
    under = tuple(path.rstrip("/") + "/" for path in code)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and "." not in name and os.path.isabs(file) and not file.startswith(under):
            yield os.path.dirname(file) if os.path.basename(file).startswith("__init__.") else file


def _visible(path: str) -> list[str]:
    """The path; of a folder with hidden entries, what is not hidden; of one that holds the home folder, its modules."""
    home = os.path.expanduser("~")
    if not os.path.isdir(path):
        return [path]
    try:
        entries = sorted(os.listdir(path))
    except OSError:
        return []
    if home == path or home.startswith(path.rstrip("/") + "/"):
        modules = (".py", ".so", ".pyc")
        inner = [os.path.join(path, entry) for entry in entries if not entry.startswith(".")]
        return [one for one in inner if one.endswith(modules) or os.path.exists(os.path.join(one, "__init__.py"))]
    if not any(entry.startswith(".") for entry in entries):
        return [path]
    return [os.path.join(path, entry) for entry in entries if not entry.startswith(".")]
