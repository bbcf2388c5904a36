"""TensorBoard, opened on what matters: charts that belong together, and what each number means."""

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary, SummaryMetadata
from torch.utils.tensorboard.summary import hparams

from oblr.record.curves import OF_STEP
from oblr.record.tags import BANDS, CATEGORIES, GOVERNED, RATE, first, meaning, name

#: What runs of a sweep are compared by.
RESULTS = ("eval/sampled_accuracy", "eval/greedy_accuracy", "eval/sampled_reward", "eval/best", "train/reward")
#: A group of the tab that TensorBoard opens, which sorts groups by their names: before ``baseline``.
GLANCE = "at a glance"
#: What it shows a second time, and the places there; of the two held-out figures a run has one.
HEADLINES = {
    "train/reward": 1,
    "eval/sampled_accuracy": 2,
    "eval/sampled_reward": 2,
    "snr/debiased": 3,
    "train/lr": 4,
    "gradnorm/q50": 5,
    "snr/M1": 6,
}


class TensorBoard(TensorBoardLogger):
    """Lightning's logger, with a description of every tag, a layout of custom scalars and a row of hyper-parameters.

    Args:
        save_dir: folder.
        version: folder in it.
    """

    def __init__(self, save_dir: str, version: str = "tensorboard"):
        super().__init__(save_dir, name="", version=version, default_hp_metric=False)
        self.described: set[str] = set()
        self.governed, self.laid_out = "", False

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if OF_STEP in metrics and not self.laid_out:
            self.experiment.add_custom_scalars(layout({*self.described, *metrics}, self.governed))
            self.laid_out = True
        values = [self.value(tag, tag, value) for tag, value in metrics.items()]
        values += [self.value(glance(tag), tag, metrics[tag]) for tag in HEADLINES if tag in metrics]
        self.experiment._get_file_writer().add_summary(Summary(value=values), step)

    def value(self, shown: str, tag: str, value: float) -> Summary.Value:
        """One number of ``tag``, to be shown under the name ``shown``; the first one brings the description along."""
        about = {} if shown in self.described else {"metadata": described(self.meaning(tag))}
        self.described.add(shown)
        return Summary.Value(tag=shown, simple_value=float(value), **about)

    def meaning(self, tag: str) -> str | None:
        """What it is; of the learning rate also what governs it in this run."""
        said = meaning(tag)
        return f"{said} {self.governed}." if tag == "train/lr" and self.governed else said

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Once, before the first step: ``params`` by name."""
        given = vars(params) if isinstance(params, Namespace) else params
        self.governed = str(given.get(GOVERNED, ""))
        *begin, self.end = hparams(given, dict.fromkeys(RESULTS, 0.0))
        for summary in begin:
            self.experiment._get_file_writer().add_summary(summary)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if status == "success":
            self.experiment._get_file_writer().add_summary(self.end)
        try:
            super().finalize(status)
        except OSError:  # of which the writer's thread dies: it is to say so while what is printed goes to the log
            with suppress(OSError):
                self.experiment._get_file_writer().close()
            raise


def described(text: str | None) -> SummaryMetadata:
    """TensorBoard's default server keeps what is said of a scalar only where it is told that this is one."""
    scalars = SummaryMetadata.PluginData(plugin_name="scalars")
    return SummaryMetadata(summary_description=text, plugin_data=scalars, data_class=DATA_CLASS_SCALAR)


def glance(tag: str) -> str:
    return f"{GLANCE}/{HEADLINES[tag]} {name(tag)}"


def layout(tags: Iterable[str], governed: str = "") -> dict[str, dict[str, list[Any]]]:
    """The tab Custom Scalars: categories → charts → their kind and tags.

    A chart has one colour a run, whatever its tags are: each tag has a chart of its own, but for a value and its band.
    Charts of tags that belong together are a category.

    Args:
        tags: logged so far, and in the first step.
        governed: what governs the learning rate.
    """
    tags = sorted(tags)
    found: dict[str, dict[str, list[Any]]] = {category: {} for category in CATEGORIES}
    others: dict[str, list[Any]] = {}
    for title, patterns in first(tags).items():
        category = next((found[kind] for kind, titles in CATEGORIES.items() if title in titles), others)
        titled = f"{title}: {governed}" if title == RATE and governed else title
        if patterns[1:] == BANDS.get(patterns[0]):
            category[titled] = ["Margin", patterns]
        elif patterns == [re.escape(patterns[0])]:
            category[titled] = ["Multiline", patterns]
        else:
            own = [tag for pattern in patterns for tag in tags if re.fullmatch(pattern, tag)]
            found[title] = {name(tag): ["Multiline", [tag]] for tag in own or patterns}
    return found | {"how it goes": others}
