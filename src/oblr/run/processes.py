"""Processes that belong together end together."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oblr.errors import RankError, RunError, SettingError
from oblr.run.paths import with_page
from oblr.run.terminal import print_error

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when ``parent``, which started it, ends, however it ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def watched(
    ranks: Callable[[], Sequence[subprocess.Popen[bytes]]], folder: Path, period: float = 1.0
) -> Iterator[None]:
    """End this process, and all processes of other ranks that it has started, soon after one of them fails.

    Args:
        ranks: gives the processes of rank 1, 2, ….
        folder: of the run, where each of them has a log.
        period: seconds between looks.

    Raises:
        RankError: where this process has failed because another one did. One that waits for the others is ended.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(period):
            failed = failure(ranks(), folder)
            if failed and not done.wait(5 * period):  # by then it has found out by itself, unless it waits for ever
                print_error(with_page(failed, RankError.page))
                end(ranks())
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except (RunError, SettingError, OSError):
        raise  # of this rank's own
    except Exception as error:
        done.set()
        deadline = time.monotonic() + 10 * period
        while ranks() and time.monotonic() < deadline:  # a connection breaks before the other process has ended
            if failed := failure(ranks(), folder):
                end(ranks())
                raise RankError(failed) from error
            time.sleep(period / 10)
        raise
    finally:
        done.set()


def failure(ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> str | None:
    """What happened to the first rank that has failed, if one has."""
    for rank, process in enumerate(ranks, 1):
        if status := process.poll():
            log = log_file(folder, rank)
            if status < 0:
                return f"rank {rank} was killed by {signal.Signals(-status).name} (its log is {log})"
            last = log.read_bytes()[-2000:].decode(errors="replace").splitlines() if log.exists() else []
            return f"rank {rank} ended with status {status}: {last[-1] if last else 'no word'} (its log is {log})"
    return None


def log_file(folder: Path, rank: int) -> Path:
    """What a rank of the run in ``folder`` prints and does not show."""
    return folder / (f"train-rank{rank}.log" if rank else "train.log")


def end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        process.kill()
