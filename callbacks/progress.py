"""The run as a person sees it: one live line, or one line every few steps where there is no terminal."""

import time
from typing import Any, cast

import rich
from lightning import LightningModule, Trainer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from callbacks.observer import Observer
from oblr.policy.step import PolicyModule
from oblr.run.timing import Stopwatch
from oblr.types import StepReport


class LiveProgress(Observer):
    """Phase, step, reward, SNR, learning rate, tokens per second, time left.

    Args:
        every: steps between lines where the output is not a terminal.
    """

    def __init__(self, every: int = 10):
        self.every = every
        self.progress: Progress | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.is_global_zero:
            rich.print(f"run folder  {trainer.default_root_dir}")
            rich.print(f"watch it    tensorboard --logdir {trainer.default_root_dir}   # its tab Custom Scalars first")
            rich.print("loading policy and rollout engine …")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        console = rich.get_console()
        self.progress = Progress(
            PhaseColumn(cast(PolicyModule, pl_module).clock),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (console.is_terminal and trainer.is_global_zero),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.task = self.progress.add_task("", total=trainer.max_epochs, completed=trainer.current_epoch, line="")
        self.progress.start()

    def on_step(self, trainer: Trainer, policy: PolicyModule, report: StepReport) -> None:
        line = (
            f"reward {report.scores.mean():.3f}  SNR {report.moments.snr_debiased:.3f}  η {report.lr:.2e}  "
            f"{trainer.callback_metrics.get('throughput/tokens_per_second', float('nan')):.0f} tok/s"
        )
        step = trainer.current_epoch + 1
        if self.progress is not None and not self.progress.disable:
            self.progress.update(self.task, completed=step, line=line)
        elif trainer.is_global_zero and step % self.every == 0:
            rich.print(f"{time.strftime('%H:%M:%S')}  step {step}/{trainer.max_epochs}  {line}")

    on_refused = on_step

    def stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.stop()


class PhaseColumn(TextColumn):
    """What the step is doing right now; redrawn by rich's own thread."""

    def __init__(self, clock: Stopwatch):
        super().__init__("")
        self.clock = clock

    def render(self, task: Any) -> Any:
        self.text_format = f"{self.clock.current:<12.12}"
        return super().render(task)
