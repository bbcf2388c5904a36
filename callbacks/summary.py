"""What a run did, on one screen and in one picture, read back from its record."""

from pathlib import Path
from textwrap import fill
from typing import cast

import rich
from lightning import LightningModule, Trainer
from matplotlib.figure import Figure
from rich.table import Table

from callbacks.observer import Observer
from oblr.metrics.accuracy import NAMES
from oblr.policy.step import PolicyModule
from oblr.record.curves import Curve, read_curves
from oblr.record.tags import RATE, name
from oblr.run.terminal import say


class Summary(Observer):
    """Draws ``summary.png`` into the run folder at the end of training and prints a table."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        curves, picture = read_curves(folder), folder / "summary.png"
        draw(curves, picture, cast(PolicyModule, pl_module).schedule.words)
        rich.print(summary_table(curves))
        say(f"picture     {picture}")


def summary_table(curves: dict[str, Curve]) -> Table:
    """First and last value of the curves that tell whether a run worked."""
    table = Table("", "first", "last", title="summary")
    for kind in ("sampled", "greedy"):
        for end, title in NAMES.items():
            if cells := held_out_cells(curves, kind, end):
                table.add_row(f"{title}, {kind}", cells[0], cells[-1])
    for label, tag in (
        ("training reward", "train/reward"),
        ("response length", "rollout/length"),
        ("SNR (debiased)", "snr/debiased"),
        ("learning rate", "train/lr"),
        ("gradient norm per sample", "gradnorm/mean"),
        ("log-prob gap, 99 % quantile", "rollout/logprob_gap_p99"),
    ):
        if tag in curves:
            values = curves[tag][1]
            table.add_row(label, f"{values[0]:.3g}", f"{values[-1]:.3g}")
    return table


def held_out_cells(curves: dict[str, Curve], kind: str, end: str) -> list[str]:
    """Cells of the table, one for each evaluation: its figure, with the interval if there is one."""
    shape = ".1%" if end == "accuracy" else ".3g"
    means, lows, highs = (
        dict(zip(*curves.get(f"eval/{kind}_{end}", ((), ())), strict=True)) for end in (end, "low", "high")
    )

    def interval(step: int) -> str:
        return f"  [{lows[step]:{shape}}, {highs[step]:{shape}}]" if step in lows and step in highs else ""

    return [f"{mean:{shape}}{interval(step)}" for step, mean in means.items()]


def draw(curves: dict[str, Curve], path: Path, governed: str) -> None:
    """Reward, SNR, learning rate, with what governs it, and gradient norms against the step."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    rewards = {"train/reward": "training reward"} | {f"eval/sampled_{end}": name for end, name in NAMES.items()}
    panels = (
        ("reward", rewards, "linear"),
        (
            "Theorem 4's factor N·SNR/(1 + N·SNR), by estimate of the SNR",
            {tag: name(tag) for tag in ("snr/factor_plug_in", "snr/factor_debiased", "snr/factor_ema")},
            "linear",
        ),
        (f"{RATE}:\n{fill(governed, 64)}", {"train/lr": RATE}, "linear"),
        ("gradient norms", {"gradnorm/mean": "of a response, mean", "snr/M1": "of the step, squared"}, "log"),
    )
    for axis, (title, tags, scale) in zip(axes.flat, panels, strict=True):
        for tag, label in tags.items():
            if tag in curves:
                axis.plot(*curves[tag], label=label, marker="o" if tag.startswith("eval/") else None)
        if tags is rewards and "eval/sampled_low" in curves:
            steps, low = curves["eval/sampled_low"]
            axis.fill_between(steps, low, curves["eval/sampled_high"][1], alpha=0.2, color="C1")
        axis.set_title(title, fontsize="medium")
        axis.set(yscale=scale)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    for axis in axes[1]:
        axis.set_xlabel("step")
    figure.savefig(path, dpi=110)
