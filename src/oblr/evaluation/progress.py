"""How far an evaluation is: a live line from its first second, or a line a phase where there is no terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import rich
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from oblr.rewards.pool import RewardPool

#: Seconds of the past that speak of the rate: responses come in the order of their lengths.
MEMORY = 600.0


class Display:
    """Responses that there are of all that there are to be, their rate, and the time that the others may take."""

    def __init__(self, progress: Progress, total: int, done: int):
        self.progress = progress
        self.task = progress.add_task("", total=total, completed=done, rate="")

    def phase(self, name: str, sampling: bool = True) -> None:
        """What happens now, e.g. a benchmark's name; the rate counts from the first that samples."""
        self.progress.update(self.task, description=name, refresh=True)
        if sampling:
            self.progress.advance(self.task, 0)
        self.line()

    def advance(self, responses: int) -> None:
        """So many more are there; may be called from any thread."""
        self.progress.advance(self.task, responses)
        self.progress.update(self.task, rate=self.rate)

    def line(self) -> None:
        """Say it in a line of its own, where nothing is shown live."""
        if self.progress.disable:
            left = "" if self.state.time_remaining is None else f"  {timedelta(seconds=self.state.time_remaining)} left"
            done = f"{self.state.completed:.0f} of {self.state.total:.0f} responses"
            rich.print(f"{self.state.description:11} {done}  {self.rate}{left}".rstrip())

    @property
    def rate(self) -> str:
        return "" if not self.state.speed else f"{self.state.speed:.3g}/s"

    @property
    def state(self) -> Task:
        return self.progress.tasks[self.task]


def tell_failures(benchmark: str, pool: RewardPool) -> None:
    """In a line, if any response was scored 0 for another reason than what it says."""
    if pool.timeouts or pool.errors:
        rich.print(f"{benchmark:11} scored 0: {pool.timeouts} that took too long, {pool.errors} that failed")


@contextmanager
def shown(total: int, done: int) -> Iterator[Display]:
    """While this lasts, of so many responses, of which some are there already."""
    console = rich.get_console()
    columns = (
        TextColumn("{task.description:11}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
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
        yield Display(progress, total, done)
