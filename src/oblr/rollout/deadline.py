"""A time limit that also ends what cannot be interrupted."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from oblr.run.terminal import print_error

#: Seconds that an error has to get through to the block that it ends.
GRACE = 1.0


@contextmanager
def deadline(seconds: float, error: Exception) -> Iterator[None]:
    """Raise ``error`` in the block, which the main thread runs, once it has taken ``seconds``.

    Python raises it between two of its own instructions. A block that is stuck inside a library, in a collective for
    example, would not hear of it: `GRACE` later the process ends.
    """
    armed = True

    def expire(number: int, frame: FrameType | None) -> None:
        if armed:
            raise error

    handler, (others, _) = signal.signal(signal.SIGALRM, expire), signal.getitimer(signal.ITIMER_REAL)
    last_resort = end_process_after(seconds + GRACE, error)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            armed = False  # the error can come as late as here, and what follows is done all the same
    finally:
        last_resort.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, others)


def end_process_after(seconds: float, error: Exception) -> threading.Timer:
    """End this process with status 2 and one line in ``seconds``, unless the timer is cancelled before."""

    def end() -> None:
        print_error(str(error))
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer
