"""A callback that tells what ails a run, while it goes on and at its end."""

import hashlib
import logging
import math
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from callbacks.observer import Observer
from callbacks.rollouts import alike, peaks_of
from oblr.batch.types import StepStatistics
from oblr.doctor.diagnosis import diagnose, lines
from oblr.doctor.reading import MOST
from oblr.gradnorm.loaded import is_sharded
from oblr.kinds import Count
from oblr.policy.method import takes_plain_steps
from oblr.policy.step import PolicyModule
from oblr.run.ranks import of_run
from oblr.run.terminal import say
from oblr.statistics.gathered import Gradient, moved, onward
from oblr.statistics.log import Response, StepRecord

log = logging.getLogger(__name__)
#: Characters that are kept of a text. What is longer is told apart by a digest.
LONGEST = 300
#: Rows and columns of the projections of a parameter.
PROJECTIONS = 16


class Doctor(Observer):
    """Warns where an illness shows, each once, and says at the end what was found.

    A resumed run knows the steps since, and the way of the last update. It logs ``monitor/onward``, see :class:`Ways`.

    Args:
        every: steps between two looks.
    """

    def __init__(self, every: Count = 10):
        self.every, self.ways = every, Ways()
        self.steps, self.said = deque[StepRecord](maxlen=MOST), set[str]()

    def state_dict(self) -> dict[str, Any]:
        return {"ways": self.ways.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.ways.load_state_dict(state_dict["ways"])

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self.ways.look(cast(PolicyModule, pl_module))

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        if (onward := self.ways.taken()) is not None:
            policy.log_dict({"monitor/onward": onward})
        if not trainer.is_global_zero:
            return
        step = trainer.current_epoch + 1
        told = policy.run.get("config", {}).get("eta0")
        self.steps.append(record(stats, step, takes_plain_steps(policy.make_optimizer), alike(policy), onward, told))
        for one in diagnose(list(self.steps)) if step % self.every == 0 else ():
            if one.kind == "illness" and one.name not in self.said:
                self.said.add(one.name)
                log.warning("step %d: doctor: %s %s; %s", one.step or step, one.said, one.evidence, one.fix)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and self.steps:
            steps = list(self.steps)
            say(*(f"doctor      {line}" for line in lines(steps, diagnose(steps), ours=True)))


class Ways:
    """Whether updates would still lead down where they have ended, by projections of parameters and gradients.

    Of updates ``−η ĝ`` the gradients are enough, which takes half the time.
    """

    def __init__(self) -> None:
        self.count = 0
        self.sharded = False
        #: By the next step's projections: where the last update began, or the gradient that it was made of.
        self.last: dict[str, Tensor] | None = None
        self.onward: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """Projections of where the last update began; of shards, those of each rank. Collective then."""
        own = self.last or {}
        return {"count": self.count, "places": of_run().objects(own) if self.sharded else [own]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; one of another number of ranks, with shards, says nothing of the last update."""
        self.count, rank, places = state["count"], of_run().rank, state["places"]
        if len(places) not in (1, of_run().count):
            return
        self.last = places[rank if len(places) > 1 else 0] or None

    def look(self, policy: PolicyModule) -> None:
        """Before an update is made. Collective where parameters are shards."""
        names: dict[Tensor, str] = {p: name for name, p in policy.named_parameters() if p.requires_grad}
        self.sharded = any(map(is_sharded, names))
        rank = of_run().rank if self.sharded else 0
        seeds = [f"{rank} {self.count + later}" for later in range(2)]
        by_gradients = takes_plain_steps(policy.make_optimizer)
        this = Gradient.of(names, PROJECTIONS, seeds, with_places=not by_gradients)
        if self.last is not None:
            way = {name: -g for name, g in self.last.items()} if by_gradients else moved(self.last, this.places)
            self.onward = onward(way, this, of_run().reduce if self.sharded else lambda sums: sums)
        self.last, self.count = this.next_sketches if by_gradients else this.next_places, self.count + 1

    def taken(self) -> float | None:
        """The cosine that the last :meth:`look` found, once; None where there is none."""
        found, self.onward = self.onward, None
        return found


def record(
    stats: StepStatistics,
    step: int,
    plain: bool,
    alike: bool,
    onward: float | None = None,
    eta0: float | None = None,
) -> StepRecord:
    """The record of a step that the doctor reads. It has the texts of this rank's responses alone.

    Args:
        plain, alike: see :func:`~oblr.policy.method.takes_plain_steps` and :func:`callbacks.rollouts.alike`.
        onward, eta0: see :class:`~oblr.statistics.log.StepRecord`.
    """
    return StepRecord(
        step=step,
        gradient_square=stats.moments.mean_square,
        group_squares=[known(square) for square in stats.group_squares.tolist()],
        responses=list(responses(stats, alike)),
        learning_rate=stats.lr,
        eta0=eta0,
        onward=onward,
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
