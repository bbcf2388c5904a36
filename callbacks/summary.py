"""What a run did, on one screen and in one picture, read back from its record."""

from pathlib import Path

import rich
from lightning import LightningModule, Trainer
from matplotlib.figure import Figure
from rich.table import Table

from callbacks.observer import Observer
from callbacks.record import Curve, read_curves
from oblr.metrics.aggregate import area_under_curve
from oblr.run.terminal import say


class Summary(Observer):
    """Draws ``summary.png`` into the run folder at the end of training and prints a table."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        curves, picture = read_curves(folder), folder / "summary.png"
        draw(curves, picture)
        rich.print(summary_table(curves))
        say(f"picture     {picture}")


def outcome(folder: Path) -> dict[str, float]:
    """Where the held-out accuracies of the run in ``folder`` end, and the areas under them."""
    metrics = {}
    for tag, (steps, values) in read_curves(folder).items():
        if tag.startswith("eval/"):
            metrics[tag] = values[-1]
            if tag.endswith("_accuracy"):
                metrics[tag.removesuffix("_accuracy") + "_area"] = area_under_curve(steps, values)
    return metrics


def summary_table(curves: dict[str, Curve]) -> Table:
    """First and last value of the curves that tell whether a run worked."""
    table = Table("", "first", "last", title="summary")
    for kind in ("sampled", "greedy"):
        if f"eval/{kind}_accuracy" in curves:
            ends = [curves[f"eval/{kind}_{end}"][1] for end in ("accuracy", "low", "high")]
            cells = [f"{mean:.1%}  [{low:.1%}, {high:.1%}]" for mean, low, high in (zip(*ends, strict=True))]
            table.add_row(f"held-out accuracy, {kind}", cells[0], cells[-1])
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


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Reward, SNR, learning rate and gradient norms against the step."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    panels = (
        ("reward", {"train/reward": "training reward", "eval/sampled_accuracy": "held-out accuracy"}, "linear"),
        ("N·SNR / (1 + N·SNR)", {f"snr/factor_{name}": name for name in ("plug_in", "debiased", "ema")}, "linear"),
        ("learning rate η", {"train/lr": "η"}, "linear"),
        ("gradient norms", {"gradnorm/mean": "mean ‖∇log π‖ per sample", "snr/M1": "‖ĝ‖²"}, "log"),
    )
    for axis, (title, tags, scale) in zip(axes.flat, panels, strict=True):
        for tag, label in tags.items():
            if tag in curves:
                axis.plot(*curves[tag], label=label, marker="o" if tag.startswith("eval/") else None)
        if "eval/sampled_accuracy" in tags and "eval/sampled_low" in curves:
            steps, low = curves["eval/sampled_low"]
            axis.fill_between(steps, low, curves["eval/sampled_high"][1], alpha=0.2, color="C1")
        axis.set(title=title, yscale=scale)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    for axis in axes[1]:
        axis.set_xlabel("step")
    figure.savefig(path, dpi=110)
