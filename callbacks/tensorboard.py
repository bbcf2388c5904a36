"""TensorBoard, opened on what matters: charts that belong together, and what each number means."""

from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from torch.utils.tensorboard.summary import hparams

from callbacks.tags import FIRST, meaning

#: What runs of a sweep are compared by.
RESULTS = ("eval/sampled_accuracy", "eval/greedy_accuracy", "eval/sampled_reward", "eval/best", "train/reward")


class TensorBoard(TensorBoardLogger):
    """Lightning's logger, with a description of every tag, a layout of custom scalars and a row of hyper-parameters."""

    def __init__(self, save_dir: str, version: str = "tensorboard"):
        super().__init__(save_dir, name="", version=version, default_hp_metric=False)
        self.described: set[str] = set()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = []
        for tag, value in metrics.items():
            about = {} if tag in self.described else {"metadata": SummaryMetadata(summary_description=meaning(tag))}
            values.append(Summary.Value(tag=tag, simple_value=float(value), **about))
        self.described.update(metrics)
        self.experiment._get_file_writer().add_summary(Summary(value=values), step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Once, before the first step: ``params`` by name, and the layout."""
        charts = [(name, [kind_of(tags), tags]) for name, tags in FIRST.items()]
        # TensorBoard puts charts with a band below the others of their category.
        self.experiment.add_custom_scalars({"does it learn": dict(charts[:2]), "how": dict(charts[2:])})
        *begin, self.end = hparams(params, dict.fromkeys(RESULTS, 0.0))
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


def kind_of(tags: list[str]) -> str:
    """A value between two bounds has a band."""
    return "Margin" if [tag.rpartition("_")[2] for tag in tags[1:]] == ["low", "high"] else "Multiline"
