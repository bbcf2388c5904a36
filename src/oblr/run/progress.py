"""How far a long task is: a live line from its first second, or a line a phase where there is no terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import rich
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from oblr.run.terminal import idle, say

#: Seconds of the past that speak of the rate: responses come in the order of their lengths.
MEMORY = 600.0


class Display:
    """Things that there are of all that there are to be, their rate, and the time that the others may take."""

    def __init__(self, progress: Progress, total: int, done: int, things: str):
        self.progress, self.things = progress, things
        self.task = progress.add_task("", total=total, completed=done, rate="")

    def phase(self, name: str, sampling: bool = True) -> None:
        """What happens now, e.g. a benchmark's name; the rate counts from the first that samples."""
        self.progress.update(self.task, description=name, refresh=True)
        if sampling:
            self.progress.advance(self.task, 0)
        self.line()

    def advance(self, more: int) -> None:
        """So many more are there; may be called from any thread."""
        self.progress.advance(self.task, more)
        self.progress.update(self.task, rate=self.rate)

    def line(self) -> None:
        """Say it in a line of its own, where nothing is shown live."""
        if self.progress.disable:
            left = "" if self.state.time_remaining is None else f"  {timedelta(seconds=self.state.time_remaining)} left"
            done = f"{self.state.completed:.0f} of {self.state.total:.0f} {self.things}"
            say(f"{self.state.description:11} {done}  {self.rate}{left}".rstrip())

    @property
    def rate(self) -> str:
        return "" if not self.state.speed else f"{self.state.speed:.3g}/s"

    @property
    def state(self) -> Task:
        return self.progress.tasks[self.task]


@contextmanager
def shown(total: int, done: int, things: str = "responses") -> Iterator[Display]:
    """While this lasts, of so many things, of which some are there already."""
    idle()
    console = rich.get_console()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:11}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(
        *columns,
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=MEMORY,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        yield Display(progress, total, done, things)
