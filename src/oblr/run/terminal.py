"""Keep the terminal for the run's own display: everything else that the process prints goes to a log file."""

import logging
import os
import select
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import rich
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from oblr.run.bystander import CLEAN
from oblr.run.plain import paragraph, plain, verbatim
from oblr.run.secrets import hidden
from oblr.run.stopping import process

#: The project's own packages: what their loggers warn of is for the user.
OWN = ("oblr", "callbacks")

#: Where errors are shown: standard error, or what it was before it went to a file.
_screen = 2
#: What the process has printed before it has a log file.
_early: BinaryIO | None = None
#: What says that something goes on.
_spinner: Progress | None = None


def say(*lines: str, style: str = "") -> None:
    """Show lines on the screen, each as one: no markup, no colours of rich's choice, and no breaks within a path."""
    for line in lines:
        rich.get_console().print(Text(plain(line), style), soft_wrap=True, highlight=False)


def print_error(problem: str) -> None:
    """One line on the terminal's standard error, quiet or not."""
    idle()
    os.write(_screen, f"error: {plain(problem)}\n".encode())


def print_warning(text: str) -> None:
    """One line there, of what will not work for ever."""
    idle()
    os.write(_screen, f"warning     {plain(text)}\n".encode())


def unread() -> bool:
    """Whether nobody reads the screen any more, as behind ``| head``; what is still written there is then lost."""
    screen, poll = rich.get_console().file, select.poll()
    try:
        poll.register(screen, select.POLLOUT)
    except ValueError:  # no file of the system's
        return False
    gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), screen.fileno())
    return gone


def busy(what: str) -> None:
    """Until further notice a terminal shows what the process is doing, and for how long; no file does."""
    global _spinner
    console = rich.get_console()
    if not console.is_terminal or process.silent:
        return
    if _spinner is None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        _spinner = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        _spinner.add_task(what)
        _spinner.start()
    _spinner.update(_spinner.task_ids[0], description=what)


def idle() -> None:
    """Something else is shown now."""
    global _spinner
    if _spinner is not None:
        spinner, _spinner = _spinner, None
        spinner.stop()


def say_of_signal(line: str, last: bool) -> None:
    """Say what a signal does, where somebody sees it; the last line leaves a terminal as a shell expects it."""
    console = rich.get_console()
    if line and (console.is_terminal or not os.isatty(_screen)):
        say(line)
    elif line:
        os.write(_screen, f"{plain(line)}\n".encode())
    if last and console.is_terminal:
        console.file.write(CLEAN)
    console.file.flush()


process.say = say_of_signal


class PlainFormatter(logging.Formatter):
    """A record is one line, whatever is said in it, and then its traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return plain(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return plain_traceback(ei[1])


def plain_traceback(error: BaseException) -> str:
    """The traceback of an error; what the error says cannot be taken for lines of the log."""
    return "".join(map(paragraph, traceback.format_exception(error))).rstrip("\n")


def show_uncaught(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    """To be :data:`sys.excepthook`: an error of the program's own ends it with a traceback, which is text, too."""
    idle()
    os.write(_screen, f"{plain_traceback(error)}\n".encode())


class WarningHandler(logging.StreamHandler):
    """Writes a warning to standard error, which is the log file, and in one line to the screen."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        say("warning     " + record.getMessage(), style="yellow")


@contextmanager
def unseen() -> Iterator[None]:
    """Keep what libraries print, while they are imported for example, from the screen, until there is a log for it.

    It comes to light where the block ends by an exception that is not the user's to mend.
    """
    global _early
    with tempfile.TemporaryFile(buffering=0) as file, _elsewhere(file):
        _early = file
        try:
            yield
        except Exception:
            file.seek(0)
            for line in file.read().decode(errors="backslashreplace").splitlines():
                os.write(_screen, f"{plain(line)}\n".encode())
            raise
        finally:
            _early = None


@contextmanager
def quiet_terminal(log: Path) -> Iterator[None]:
    """Send file descriptors 1 and 2 to the end of ``log``, C++ libraries included; rich's console keeps the screen.

    Warnings of the project's own loggers go to both. The traceback of what ends the block goes to the log.
    """
    handler = WarningHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    with open(log, "ab", buffering=0, opener=_private) as file, _elsewhere(file):
        if _early is not None:
            _early.seek(0)
            file.write(_early.read())
            _early.seek(0)
            _early.truncate()
        for name in OWN:
            logging.getLogger(name).addHandler(handler)
            logging.getLogger(name).setLevel(logging.WARNING)  # Hydra, told to be silent, has set the root to ERROR
        try:
            yield
        except Exception as error:
            with suppress(OSError):  # the disk may be full: what is raised says so
                os.write(2, f"{plain_traceback(error)}\n".encode())
            raise
        finally:
            for name in OWN:
                logging.getLogger(name).removeHandler(handler)
                logging.getLogger(name).setLevel(logging.NOTSET)


def _private(path: str, flags: int) -> int:
    """For the user's eyes alone: what libraries say has been nobody's to write."""
    return os.open(path, flags, 0o600)


class _Plain(RenderHook):
    """What rich draws, tables and lines under way, has no text in it that is more than text."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Drawn(renderable) for renderable in renderables]


class _Drawn:
    def __init__(self, drawn: ConsoleRenderable):
        self.drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _plain_segments(console.render(self.drawn, options))


def _plain_segments(segments: Iterable[Segment]) -> Iterator[Segment]:
    for text, style, control in segments:  # rich itself steers the terminal by control segments
        yield Segment(text if control else verbatim(hidden(text), keep="\n"), style, control)


@contextmanager
def _elsewhere(file: BinaryIO) -> Iterator[None]:
    """Descriptors 1 and 2 go to ``file``; the first such block leaves the screen to rich's console, and to errors."""
    global _screen
    sys.stdout.flush()
    sys.stderr.flush()
    out, err, outermost = os.dup(1), os.dup(2), _screen == 2
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    try:
        if outermost:
            _screen = err
            with os.fdopen(os.dup(out), "w") as screen:
                # a path in a file stays in one piece, and what stands in brackets is no markup
                rich.reconfigure(file=screen, soft_wrap=not screen.isatty(), markup=False, emoji=False, highlight=False)
                rich.get_console().push_render_hook(_Plain())
                try:
                    yield
                finally:
                    idle()
        else:
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        if outermost:
            rich.reconfigure()
            _screen = 2
