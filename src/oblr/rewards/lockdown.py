"""What a process may give up by itself, on Linux: rights, system calls, files that it may open, signals to others.

The kernel's Landlock is called directly: its interface is stable, and the package for it knows neither its bounds on
signals nor on abstract sockets. Filters of system calls are made by libseccomp (:func:`seccomp_filter`).
"""

import ctypes
import os
import struct
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)
_PDEATHSIG, _DUMPABLE, _SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 36, 38

# --- rights -----------------------------------------------------------------------------------------------------------


def _prctl(option: int, value: int, other: object = 0) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), other, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def no_new_rights() -> None:
    """No program that this process starts has more rights than it has, and it has none beside its user's."""
    _prctl(_NO_NEW_PRIVS, 1)
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    if _libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def unreadable(yes: bool) -> None:
    """Whether no other process of this user may look into this one, or write there."""
    _prctl(_DUMPABLE, int(not yes))


def adopt() -> None:
    """What this process's descendants leave behind becomes its own child, and can be ended."""
    _prctl(_SUBREAPER, 1)


def end_with(signal: int) -> None:
    """Get this signal when the process that started this one ends."""
    _prctl(_PDEATHSIG, signal)


# --- system calls -----------------------------------------------------------------------------------------------------

_OWN, _MINUS_OWN = 0x5EEDF00D, 0x5EEDF00E  # stand for the process's id in a filter
_CLONE_THREAD = 0x10000
_CLONE_NEW = 0x7E020000  # user, process, network, file and other namespaces
#: What looks into other processes, or goes round the other rules.
_NEVER = (
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd perf_event_open bpf userfaultfd "
    "io_uring_setup io_uring_enter io_uring_register socket memfd_create memfd_secret shmget msgget semget mq_open "
    "unshare setns mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount mount_setattr "
    "add_key request_key keyctl name_to_handle_at open_by_handle_at quotactl pidfd_send_signal rt_sigqueueinfo "
    "rt_tgsigqueueinfo reboot swapon swapoff acct init_module finit_module kexec_load syslog"
)
#: What changes files that a process may only read, and other processes, where no namespace forbids it.
_ATTRIBUTES = (
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat "
    "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat "
    "sched_setscheduler sched_setparam sched_setaffinity sched_setattr setpriority ioprio_set"
)
_SIGNALS = ("kill", "tkill")


@cache
def seccomp_filter(namespaces: bool, signals: bool, processes: bool) -> bytes | None:
    """A filter of system calls for :func:`filter_calls`; None where libseccomp is missing.

    No sockets but pairs, no shared memory that outlives a process, nobody else's memory; and a process cannot kill
    itself by SIGKILL, so that who finds it dead by that knows that it came from outside.

    Args:
        namespaces: whether the process has files and processes of its own.
        signals: whether it may end what it has started; only where signals cannot reach others.
        processes: whether it may start any.
    """
    try:
        import pyseccomp as seccomp  # finds the library when it is imported
    except (ImportError, OSError, RuntimeError):
        return None
    refused, filter = seccomp.ERRNO(1), seccomp.SyscallFilter(seccomp.ALLOW)
    arg, same, masked = seccomp.Arg, seccomp.EQ, seccomp.MASKED_EQ
    rules: list[tuple[str, tuple[object, ...]]] = [(name, ()) for name in _NEVER.split()]
    rules += [] if namespaces else [(name, ()) for name in _ATTRIBUTES.split()]
    rules += [("clone", (arg(0, masked, 1 << bit, 1 << bit),)) for bit in range(32) if _CLONE_NEW >> bit & 1]
    if not processes:
        rules += [("clone", (arg(0, masked, _CLONE_THREAD, 0),)), ("fork", ()), ("vfork", ())]
    low = 0xFFFFFFFF  # ids of processes have 32 bits
    if signals:
        own = [arg(0, masked, low, who) for who in (_OWN, _MINUS_OWN, 0, low)]
        rules += [("kill", (who, arg(1, masked, low, 9))) for who in own]
        rules += [("tkill", (arg(1, masked, low, 9),)), ("tgkill", (own[0], arg(2, masked, low, 9)))]
    else:
        rules += [(name, ()) for name in _SIGNALS]
        rules += [("tgkill", (arg(2, masked, low, 9),)), ("tgkill", (arg(0, seccomp.NE, _OWN),))]
    rules += [("prlimit64", (arg(0, seccomp.NE, 0), arg(2, seccomp.NE, 0)))]  # of another process
    for limit in (0, 15):  # of processor time: the kernel kills who exceeds it
        rules += [
            ("prlimit64", (arg(1, masked, low, limit), arg(2, seccomp.NE, 0))),
            ("setrlimit", (arg(0, same, limit),)),
        ]
    # the other ways to be sent SIGKILL: by a file, when a child ends, by the strict mode of filters
    rules += [("fcntl", (arg(1, masked, low, command),)) for command in (8, 10, 15)]
    rules += [("clone", (arg(0, masked, 0xFF, 9),)), ("timer_create", ())]
    rules += [
        ("prctl", (arg(0, masked, low, _SECCOMP), arg(1, masked, low, 1))),
        ("seccomp", (arg(0, masked, low, 0),)),
    ]
    for name, arguments in rules:
        try:
            filter.add_rule(refused, name, *arguments)
        except (ValueError, OSError):  # this machine's kernel has no such call
            continue
    filter.add_rule(seccomp.ERRNO(38), "clone3")  # its flags cannot be looked at; libc takes clone instead
    with tempfile.TemporaryFile() as file:
        filter.export_bpf(file)
        file.seek(0)
        return file.read()


def filter_calls(program: bytes) -> None:
    """Refuse system calls by such a filter, from now on, in this process and what it starts."""
    own = os.getpid()
    program = program.replace(struct.pack("<I", _OWN), struct.pack("<I", own))
    program = program.replace(struct.pack("<I", _MINUS_OWN), struct.pack("<i", -own))
    buffer = ctypes.create_string_buffer(program, len(program))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    _prctl(_SECCOMP, 2, whole)


# --- files ------------------------------------------------------------------------------------------------------------

_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _DEVICES = 1, 2, 4, 8, 1 << 14, 1 << 15
_FILES = (1 << 15) - 1
_NO_ABSTRACT_SOCKETS, _NO_SIGNALS = 1, 2
#: The first version that guards against shortening files.
OLDEST = 3
#: The first version that keeps signals inside.
KEEPS_SIGNALS = 6


def landlock_version() -> int:
    """Of the kernel's Landlock; 0 where it has none."""
    return max(0, int(_libc.syscall(444, None, 0, 1))) if LINUX else 0


class Files:
    """Which files a process may open, once it is :meth:`closed`.

    Args:
        readable: files and folders; those that do not exist are passed over.
        writable: folders, and files such as ``/dev/null``.
    """

    def __init__(self, readable: Sequence[str], writable: Sequence[str]):
        version = landlock_version()
        self.handled = _FILES | (_DEVICES if version >= 5 else 0)
        attributes = struct.pack("QQQ", self.handled, 0, _NO_ABSTRACT_SOCKETS | _NO_SIGNALS)
        size = 24 if version >= KEEPS_SIGNALS else 8
        self.rules = int(_libc.syscall(444, ctypes.c_char_p(attributes), ctypes.c_size_t(size), 0))
        if self.rules < 0:
            raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
        os.set_inheritable(self.rules, False)
        for path in readable:
            self.allow(path, _EXECUTE | _READ | _LIST)
        for path in writable:
            self.allow(path, self.handled)

    def allow(self, path: str, access: int = _EXECUTE | _READ | _LIST) -> None:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined]
        except OSError:
            return
        if not os.path.isdir(path):
            access &= _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICES
        rule = struct.pack("=Qi", access, place)
        failed = _libc.syscall(445, self.rules, 1, ctypes.c_char_p(rule), 0)
        os.close(place)
        if failed:
            raise OSError(ctypes.get_errno(), f"landlock_add_rule({path})")

    def closed(self) -> None:
        """From now on this process opens nothing else, and reaches no process outside of it that it has not started."""
        if _libc.syscall(446, self.rules, 0):
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")


# --- what processes have ----------------------------------------------------------------------------------------------


def descendants(process: int) -> list[int]:
    """Ids of all processes below this one."""
    found, waiting = [], [process]
    while waiting:
        tasks = Path(f"/proc/{waiting.pop()}/task")
        try:
            children = [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
        found += children
        waiting += children
    return found


def resident(process: int) -> int:
    """Bytes of a process that are in memory, those that it shares with others included; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def proportional(process: int) -> int:
    """Bytes in memory, of what several processes share only the process's part."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return resident(process)
