"""A few rollouts to read, at every so many steps."""

from lightning import Trainer

from callbacks.observer import Observer, tensorboard
from oblr.policy.step import PolicyModule
from oblr.types import StepReport


class SampleTable(Observer):
    """Writes the first group (a live one if there is any) as a table: prompt, response, reward, advantage, weight.

    Args:
        every: steps between tables.
        rows: responses shown.
    """

    def __init__(self, every: int = 10, rows: int = 8):
        self.every, self.rows = every, rows

    def on_step(self, trainer: Trainer, policy: PolicyModule, report: StepReport) -> None:
        writer = tensorboard(trainer)
        if writer is not None and trainer.current_epoch % self.every == 0:
            writer.add_text("rollout/samples", sample_table(report, self.rows), trainer.current_epoch)


def sample_table(report: StepReport, rows: int) -> str:
    """Markdown table of one group."""
    q = report.first + int(report.live[report.first :][: report.batch.n_groups].int().argmax())
    lines = ["| prompt | response | reward | advantage | weight |", "|---|---|---|---|---|"]
    for i, rollout in enumerate(report.batch.group(q - report.first)[:rows]):
        lines.append(
            f"| {_cell(rollout.problem.prompt)} | {_cell(rollout.text)} | {rollout.reward:g} "
            f"| {report.advantages[q, i]:+.3f} | {report.weights[q, i]:.3g} |"
        )
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
