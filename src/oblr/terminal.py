"""Keep the terminal for the run's own display: everything else that the process prints goes to a log file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rich


@contextmanager
def quiet_terminal(log: Path) -> Iterator[None]:
    """Send file descriptors 1 and 2 to the end of ``log``, C++ libraries included; rich's console keeps the screen."""
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        with os.fdopen(os.dup(out), "w") as screen:
            rich.reconfigure(file=screen)
            yield
    finally:
        rich.reconfigure()
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
