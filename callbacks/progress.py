"""The run as a person sees it: a line a step that stays, now and then a sample, and on a terminal what goes on."""

import time
from typing import Any, cast

import rich
from lightning import LightningModule, Trainer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from callbacks.observer import Observer
from callbacks.samples import plain
from callbacks.throughput import Throughput
from oblr.batch.types import Rollout, StepStatistics
from oblr.kinds import Count
from oblr.policy.step import PolicyModule
from oblr.run.terminal import idle, say
from oblr.run.timing import Stopwatch

#: Characters of a prompt, and of a response, in the line of a sample.
SHOWN = 60


class LiveProgress(Observer):
    """A line a step: reward, SNR, learning rate, tokens per second. A terminal shows phase and time below them.

    Args:
        every: steps between two samples, a prompt with a response and its reward.
    """

    def __init__(self, every: Count = 10):
        self.every = every
        self.progress: Progress | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not trainer.is_global_zero:
            return
        folder, console = trainer.default_root_dir, rich.get_console()
        say(f"run folder  {folder}", f"watch it    tensorboard --logdir {folder}   # its tab Custom Scalars first")
        idle()
        self.progress = Progress(
            SpinnerColumn(),
            PhaseColumn(cast(PolicyModule, pl_module).clock),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.task = self.progress.add_task("", total=trainer.max_epochs)
        self.progress.start()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=trainer.current_epoch)

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        if self.progress is None:
            return
        step = trainer.current_epoch + 1
        rates = [one.rate for one in _callbacks(trainer) if isinstance(one, Throughput)]
        say(
            f"{time.strftime('%H:%M:%S')}  step {step}/{trainer.max_epochs}  reward {stats.scores.mean():.3f}  "
            f"SNR {stats.moments.snr_debiased:.3f}  η {stats.lr:.2e}{''.join(f'  {r:.0f} tok/s' for r in rates)}"
        )
        if trainer.current_epoch % self.every == 0:
            say(sample(stats.batch.rollouts[0]), style="dim")
        self.progress.update(self.task, completed=step)

    on_refused = on_step

    def stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.stop()


def sample(rollout: Rollout) -> str:
    """In one line."""
    prompt, response = (_short(text) for text in (rollout.problem.prompt, rollout.text))
    return f"sample      {prompt} → {response}  (reward {rollout.reward:g})"


def _short(text: str) -> str:
    """The end of a text: questions and answers stand there."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= SHOWN else f"… {line[-SHOWN:]}"


def _callbacks(trainer: Trainer) -> list[Any]:
    return trainer.callbacks  # type: ignore[attr-defined]


class PhaseColumn(TextColumn):
    """What the step is doing right now; redrawn by rich's own thread."""

    def __init__(self, clock: Stopwatch):
        super().__init__("")
        self.clock = clock

    def render(self, task: Any) -> Text:
        return Text(f"{self.clock.current or 'loading' if not task.completed else self.clock.current:<12.12}")
