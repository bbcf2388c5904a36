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

from oblr.errors import RankError
from oblr.terminal import print_error

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the one that started it ends, however it ends. Linux only."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended in between
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def watched(ranks: Callable[[], Sequence[subprocess.Popen[bytes]]], period: float = 1.0) -> Iterator[None]:
    """End this process, and all processes of other ranks that it has started, soon after one of them fails.

    Args:
        ranks: gives the processes of rank 1, 2, ….
        period: seconds between looks.

    Raises:
        RankError: where this process has failed because another one did. One that waits for the others is ended.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(period):
            failed = failure(ranks())
            if failed and not done.wait(5 * period):  # by then it has found out by itself, unless it waits for ever
                print_error(failed)
                end(ranks())
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except Exception as error:
        time.sleep(period)  # a connection breaks before the kernel calls the other process dead
        if failed := failure(ranks()):
            end(ranks())
            raise RankError(failed) from error
        raise
    finally:
        done.set()


def failure(ranks: Sequence[subprocess.Popen[bytes]]) -> str | None:
    """What happened to the first rank that has failed, if one has."""
    for rank, process in enumerate(ranks, 1):
        if status := process.poll():
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            return f"rank {rank} {how}; its output is in train-rank{rank}.log of the run folder"
    return None


def end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        process.kill()
