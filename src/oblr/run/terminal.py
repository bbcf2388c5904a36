"""Keep the terminal for the run's own display: everything else that the process prints goes to a log file."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import rich

#: The project's own packages: what their loggers warn of is for the user.
OWN = ("oblr", "callbacks")

#: Where errors are shown: standard error, or what it was before it went to a file.
_screen = 2


def print_error(problem: str) -> None:
    """One line on the terminal's standard error, quiet or not."""
    os.write(_screen, f"error: {problem}\n".encode())


def print_warning(text: str) -> None:
    """One line there, of what will not work for ever."""
    os.write(_screen, f"warning     {text}\n".encode())


class WarningHandler(logging.StreamHandler):
    """Writes a warning to standard error, which is the log file, and in one line to the screen."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        line = "warning     " + record.getMessage()
        rich.get_console().print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def quiet_terminal(log: Path) -> Iterator[None]:
    """Send file descriptors 1 and 2 to the end of ``log``, C++ libraries included; rich's console keeps the screen.

    Warnings of the project's own loggers go to both. The traceback of what ends the block goes to the log.
    """
    global _screen
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    _screen = err
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    handler = WarningHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in OWN:
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.WARNING)  # Hydra, told to be silent, has set the root to ERROR
    try:
        with os.fdopen(os.dup(out), "w") as screen:
            rich.reconfigure(file=screen, soft_wrap=not screen.isatty())  # a path in a file stays in one piece
            yield
    except Exception:
        with suppress(OSError):  # the disk may be full: what is raised says so
            os.write(2, traceback.format_exc().encode())
        raise
    finally:
        for name in OWN:
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).setLevel(logging.NOTSET)
        rich.reconfigure()
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
        _screen = 2
        os.close(out)
        os.close(err)
