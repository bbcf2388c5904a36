"""A callback that tells what ails a run, while it goes on and at its end."""

import hashlib
import logging
import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from lightning import LightningModule, Trainer

from callbacks.observer import Observer
from callbacks.rollouts import alike, peaks_of
from oblr.batch.types import StepStatistics
from oblr.doctor.diagnosis import diagnose, lines
from oblr.doctor.reading import MOST
from oblr.kinds import Count
from oblr.policy.step import PolicyModule
from oblr.run.terminal import say
from oblr.statistics.log import Response, StepRecord

log = logging.getLogger(__name__)
#: Characters that are kept of a text. What is longer is told apart by a digest.
LONGEST = 300


class Doctor(Observer):
    """Warns where an illness shows, each once, and says at the end what was found.

    A resumed run knows the steps since.

    Args:
        every: steps between two looks.
    """

    def __init__(self, every: Count = 10):
        self.every = every
        self.steps, self.said = deque[StepRecord](maxlen=MOST), set[str]()

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        if not trainer.is_global_zero:
            return
        step = trainer.current_epoch + 1
        self.steps.append(record(stats, step, plain(policy), alike(policy)))
        for one in diagnose(list(self.steps)) if step % self.every == 0 else ():
            if one.kind == "illness" and one.name not in self.said:
                self.said.add(one.name)
                log.warning("step %d: doctor: %s %s; %s", one.step or step, one.said, one.evidence, one.fix)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and self.steps:
            steps = list(self.steps)
            say(*(f"doctor      {line}" for line in lines(steps, diagnose(steps), ours=True)))


def plain(policy: PolicyModule) -> bool:
    """Whether updates are ``−η ĝ``."""
    optimizer = policy.optimizers().optimizer  # type: ignore[union-attr]
    return isinstance(optimizer, torch.optim.SGD) and not optimizer.param_groups[0]["momentum"]


def record(stats: StepStatistics, step: int, plain: bool, alike: bool) -> StepRecord:
    """The record of a step that the doctor reads. It has the texts of this rank's responses alone.

    Args:
        plain, alike: see :func:`plain` and :func:`callbacks.rollouts.alike`.
    """
    return StepRecord(
        step=step,
        gradient_square=stats.moments.mean_square,
        group_squares=[known(square) for square in stats.group_squares.tolist()],
        responses=list(responses(stats, alike)),
        learning_rate=stats.lr,
        plain=plain,
        age=stats.batch.age,
    )


def responses(stats: StepStatistics, alike: bool) -> Iterator[Response]:
    """The responses of all ranks, group by group, as a record has them."""
    count, size = stats.rewards.shape
    parts = (stats.coefficients / count).square() * stats.square_norms
    columns = {
        "gradient_square": torch.where(stats.coefficients == 0, 0.0, parts),
        "square_norm": stats.square_norms,
        "reward": stats.rewards,
        "advantage": stats.advantages,
        "length": stats.lengths,
        "finished": stats.finished.bool(),
        "log_ratio": stats.log_ratios,
        "entropy": stats.entropies / stats.lengths,
    }
    of_each = {name: column.flatten().tolist() for name, column in columns.items()}
    here, batch = stats.first * size, stats.batch.rollouts
    top = peaks_of(stats.batch) if alike else [(None, None)] * len(batch)
    for place in range(count * size):
        numbers: dict[str, Any] = {name: known(column[place]) for name, column in of_each.items()}
        rollout = batch[place - here] if 0 <= place - here < len(batch) else None
        texts: dict[str, Any] = {}
        if rollout is not None:
            texts = {"prompt": short(rollout.problem.prompt), "text": short(rollout.text)}
            numbers["logprob"] = known(sum(rollout.completion.logprobs))
            numbers["peak"], numbers["peak_share"] = top[place - here]
        yield Response(group=place // size, **numbers, **texts)


def known(value: float) -> float | None:
    """None for what is no number."""
    return value if math.isfinite(value) else None


def short(text: str) -> str:
    """A text, or its beginning and a digest of it: the texts of a run's steps would take too much memory."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… {hashlib.blake2b(text.encode(errors='replace')).hexdigest()}"
