"""Failures that do not end a run: each is a curve, and a warning at its onset that names the setting to change."""

import logging
import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from lightning import Trainer

from callbacks.observer import Observer
from oblr.baselines.base import Baseline, Groups, all_groups
from oblr.batch.types import StepStatistics
from oblr.kinds import Count, Decay, Positive
from oblr.policy.step import PolicyModule
from oblr.schedules.annealed import AnnealedSchedule
from oblr.schedules.clipped import ClippedSchedule
from oblr.schedules.noise import NoiseSchedule
from oblr.schedules.snr import SNRSchedule

log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """What a monitor makes of a step: values of ``monitor/<name>``, and what is wrong with the advice, if anything."""

    metrics: dict[str, float]
    failure: str | None


class Monitor(ABC):
    """Watches for one kind of failure.

    Args:
        bound: between healthy and failing.
        patience: readings in a row with which a failure begins; as many without it end it.
    """

    #: what a checkpoint has, so that a resumed run does not warn again
    kept: ClassVar[tuple[str, ...]] = ("failing", "streak")

    def __init__(self, bound: Positive, patience: Count):
        self.bound, self.patience = bound, patience
        self.failing, self.streak = False, 0

    @abstractmethod
    def read(self, policy: PolicyModule, stats: StepStatistics, step: int) -> Reading | None:
        """None where the step tells nothing, for better or worse."""

    def begins(self, failure: bool) -> bool:
        """Whether a failure begins with this reading."""
        changed = failure != self.failing
        self.streak = self.streak + 1 if changed else 0
        if not changed or self.streak < self.patience:
            return False
        self.failing, self.streak = failure, 0
        return failure

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.kept:
            setattr(self, name, state[name])


class Monitors(Observer):
    """Logs what the monitors measure, and warns where a failure begins.

    Args:
        monitors: by name.
    """

    def __init__(self, **monitors: Monitor):
        self.monitors = monitors

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        step = trainer.current_epoch
        for monitor in self.monitors.values():
            reading = monitor.read(policy, stats, step)
            if reading is None:
                continue
            policy.log_dict({f"monitor/{name}": value for name, value in reading.metrics.items()})
            if monitor.begins(reading.failure is not None) and trainer.is_global_zero:
                log.warning("step %d: %s", step + 1, reading.failure)

    def state_dict(self) -> dict[str, Any]:
        return {name: monitor.state_dict() for name, monitor in self.monitors.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.monitors.keys() & state_dict.keys():
            self.monitors[name].load_state_dict(state_dict[name])


class LearningRateCollapse(Monitor):
    """The noise leaves next to nothing of ``η₀``: ``monitor/lr_factor = η_t/η₀`` is below ``bound``.

    Of :class:`SNRSchedule`, after its warm-up, and :class:`NoiseSchedule`, apart from a decay that is set besides:
    where anything else gives a small rate, it was asked for. A step without any gradient tells nothing of the schedule.

    Args:
        bound: least learning rate, over ``η₀``.
    """

    def read(self, policy: PolicyModule, stats: StepStatistics, step: int) -> Reading | None:
        schedule, share, place = policy.schedule, 1.0, "schedule"
        while isinstance(schedule, AnnealedSchedule | ClippedSchedule):
            if isinstance(schedule, AnnealedSchedule):
                share *= schedule.share(stats.moments, step)
            schedule, place = schedule.schedule, f"{place}.schedule"
        if not isinstance(schedule, SNRSchedule | NoiseSchedule):
            return None
        if schedule.eta0 == 0 or share == 0 or stats.moments.square_mean == 0:
            return None
        if isinstance(schedule, NoiseSchedule):
            advice = f"lower eta0, or raise {place}.level_steps where few groups were live at the start,"
        elif step < schedule.warm_up:
            return None
        else:
            smooth = "" if schedule.estimator == "ema" else f"{place}.estimator=ema or "
            advice = f"set {smooth}{place}.floor=0.05,"
        factor = stats.lr / (share * schedule.eta0)
        failure = f"the learning rate has collapsed to {factor:.2g} of eta0; {advice} or raise rollout.prompts_per_step"
        return Reading({"lr_factor": factor}, failure if factor < self.bound else None)


class BaselineBlowUp(Monitor):
    """One response has nearly all the weight of its group: ``ESS = (Σ_j w_j)² / Σ_j w_j²`` is near 1.

    ``monitor/effective_sample_size`` is its mean over the groups that took part, relative to G; beside it are median
    and worst. A median below ``bound`` responses is the failure; one that is merely small is not: where most responses
    are nearly certain, the optimal weights are those of the few others. Baselines without weights are not watched, nor
    are groups of two, where leaving one out leaves no choice.

    Args:
        bound: least effective number of responses in a group.
    """

    def read(self, policy: PolicyModule, stats: StepStatistics, step: int) -> Reading | None:
        size, known = stats.reward_weights.shape[1], stats.live & stats.reward_weights.isfinite().all(1)
        if not policy.baseline.needs_norms or size <= 2 or not known.any():
            return None
        weights = stats.reward_weights[known]
        # 0/0: of weights that are all zero a baseline makes equal ones.
        ess = (weights.sum(1).square() / weights.square().sum(1)).nan_to_num(nan=size)
        mean, median, worst = (value.item() for value in (ess.mean(), ess.quantile(0.5), ess.min()))
        failure = (
            f"one response has nearly all the weight of its group (effective sample size {median:.2f} of {size}); "
            "set baseline.prior=past, baseline=rloo or gradnorm=logit, or raise rollout.group_size"
        )
        name = "effective_sample_size"
        metrics = {name: mean / size, f"{name}_median": median / size, f"{name}_worst": worst / size}
        return Reading(metrics, failure if median < self.bound else None)


class OwnSampleDependence(Monitor):
    """``b_i`` depends on ``o_i``, and the gradient is biased: ``monitor/own_sample_dependence`` is not 0.

    Tried out on the first group that took part, at every ``every``-th step. Baselines whose advantages differ from
    token to token cannot be tried out on what is known of a step.

    Args:
        every: steps between two tries.
    """

    def __init__(self, every: Count):
        super().__init__(bound=1e-6, patience=1)  # float64 rounds far below that
        self.every = every

    def read(self, policy: PolicyModule, stats: StepStatistics, step: int) -> Reading | None:
        known = stats.live & (stats.reward_weights.isfinite().all(1) | (not policy.baseline.needs_norms))
        if policy.baseline.per_token or step % self.every != 0 or not known.any():
            return None
        q = int(known.int().argmax())
        rewards = stats.rewards.double()  # float32 would round too coarsely
        group = replace(all_groups(stats), rewards=rewards, step_rewards=rewards).of(torch.tensor([q]))
        dependence = own_sample_dependence(policy.baseline, group, q)
        failure = (
            f"the baseline depends on its own sample ({dependence:.2g} of a change in reward): the gradient is biased; "
            "use baseline.form=leave_one_out, baseline.pooled=false or baseline.normalise=false where the baseline "
            "has it, or baseline=rloo"
        )
        return Reading({"own_sample_dependence": dependence}, failure if dependence > self.bound else None)


def own_sample_dependence(baseline: Baseline, group: Groups, q: int) -> float:
    """``max_i |b_i' − b_i|`` with ``b_i = R_i − A_i``, where ``b_i'`` is of ``R_i + 1``, ``2 w_i`` and ``2 l_i``.

    The mean of a group has 1/G, leave-one-out forms have 0.

    Args:
        group: a single one, with rewards in float64; it is row ``q`` of ``step_rewards`` and ``step_weights``.
    """
    assert group.step_weights is not None
    before, changes = group.rewards - baseline(group), []
    for i, own in enumerate(torch.eye(group.rewards.shape[1], dtype=torch.int64)):
        rewards, weights = group.step_rewards.clone(), group.step_weights.clone()
        rewards[q] += own
        weights[q] *= 1 + own
        moved = replace(
            group,
            rewards=group.rewards + own,
            reward_weights=group.reward_weights * (1 + own),
            lengths=group.lengths * (1 + own),
            step_rewards=rewards,
            step_weights=weights,
        )
        changes.append((moved.rewards - baseline(moved) - before)[0, i].abs().item())
    return max(changes)


class EntropyCollapse(Monitor):
    """Sampling hardly explores any more: ``monitor/entropy_share`` is below ``bound``.

    That is a moving average of the entropy, over the entropy of the first step, which the average starts from.

    Args:
        bound: least entropy, over the first step's.
        decay: what the average of the entropy keeps at a step.
    """

    kept = (*Monitor.kept, "first", "average")

    def __init__(self, bound: Positive, patience: Count, decay: Decay = 0.9):
        super().__init__(bound, patience)
        self.decay = decay
        self.first = self.average = math.nan

    def read(self, policy: PolicyModule, stats: StepStatistics, step: int) -> Reading | None:
        if math.isnan(stats.entropy):
            return None
        if math.isnan(self.first):
            self.first = self.average = stats.entropy
        self.average += (1 - self.decay) * (stats.entropy - self.average)
        share = self.average / self.first if self.first > 0 else 0.0
        failure = (
            f"the entropy has collapsed to {self.average:.2g} nats a token, {share:.2g} of the first step's; "
            "lower eta0, add a KL penalty by kl=k1, or raise rollout.temperature"
        )
        return Reading({"entropy_share": share}, failure if share < self.bound else None)
