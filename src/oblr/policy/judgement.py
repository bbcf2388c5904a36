"""Whether a step may move anything: neither parameters nor averages move by what is no number, or by too much noise."""

import logging
from typing import Literal, NamedTuple

import torch

from oblr.batch.types import StepStatistics
from oblr.errors import RefusedError
from oblr.run.ranks import of_run

log = logging.getLogger(__name__)
#: So many refused steps in a row end a run.
PATIENCE = 10


class Fault(NamedTuple):
    """What is wrong with a response, by the places of its group among those of all ranks and of itself in there."""

    group: int
    response: int
    problem: str


def first_fault(stats: StepStatistics) -> Fault | None:
    """The first cause for which the step cannot be taken, in the order in which one follows from another.

    Rewards count in all groups, since baselines look at the whole step; the rest in those that took part. Where all
    that is known of the responses is finite and the gradient is not, the response is the one of the largest
    coefficient. All ranks are given the same, and find the same.
    """
    every, live = torch.ones_like(stats.live), stats.live
    for name, values, groups in (
        ("reward", stats.scores, every),
        ("reward less its KL penalty", stats.rewards, every),
        ("log π − log μ", stats.log_ratios, live),
        ("weight in the baseline", stats.reward_weights, live),
        ("advantage", stats.advantages, live),
        ("coefficient", stats.coefficients, live),
    ):
        wrong = ~values.isfinite() & groups[:, None]
        if wrong.any():
            group, response = wrong.nonzero()[0].tolist()
            return Fault(group, response, f"its {name} is {values[group, response]:g}")
    wrong = ~stats.group_squares.isfinite() & live
    if stats.moments.finite and not wrong.any():
        return None
    suspects = stats.coefficients.masked_fill(~(wrong if wrong.any() else live)[:, None], -1)
    group, response = divmod(int(suspects.argmax()), suspects.shape[1])
    size, ratio = stats.coefficients[group, response], stats.log_ratios[group, response]
    return Fault(
        group,
        response,
        f"the gradient overflows (M1 = {stats.moments.mean_square:g}), and its coefficient is the largest, "
        f"{size:.3g} with log π − log μ = {ratio:.3g}",
    )


class Refusals:
    """The steps of a run that were refused.

    Attributes:
        count: all of them.
        streak: how many of them in a row, up to now.
        reason: of the last one.
    """

    def __init__(self) -> None:
        self.count = self.streak = 0
        self.reason = ""

    def judge(self, stats: StepStatistics, step: int) -> bool:
        """Whether the step is refused; the first rank then says why. Collective where it is."""
        fault = first_fault(stats)
        if fault is None:
            self.streak = 0
            return False
        self.count, self.streak = self.count + 1, self.streak + 1
        ranks, batch = of_run(), stats.batch
        rank, group = divmod(fault.group, batch.n_groups)
        problem = ranks.objects(batch.group(group)[fault.response].problem.id)[rank]
        self.reason = (
            f"response {fault.response + 1} of {batch.group_size} to prompt {group + 1} of {batch.n_groups} "
            f"({problem}) on rank {rank}: {fault.problem}"
        )
        if ranks.rank == 0:
            log.warning("step %d is refused and nothing moves: %s", step + 1, self.reason)
        return True

    @property
    def hopeless(self) -> bool:
        return self.streak >= PATIENCE

    def give_up(self, done: int) -> None:
        """End the run after ``done`` steps if it is hopeless.

        Raises:
            RefusedError: it is.
        """
        if self.hopeless:
            raise RefusedError(
                f"steps {done - self.streak + 1} to {done} were all refused, the last one as {self.reason}; the policy "
                f"is as step {done - self.streak} left it (lower eta0, bound the ratios by loss.truncate, or mend the "
                "reward or engine; then go on with ckpt_path=last)"
            )


class Drops:
    """Batches whose rollouts are so old that little or nothing is learnt from them.

    Their noise is what their ratios make of the gradients' second moment,
    :attr:`~oblr.batch.types.StepStatistics.growth`, in which rewards have no part. Where the policy has not moved since
    the weights that sampled a batch, nothing in its ratios is of age, and it is used: so after a few drops the rollouts
    are young again.

    Args:
        most: that the noise of a batch may be, over that of fresh rollouts; None: anything.
        beyond: what becomes of a batch with more: ``drop``: nothing is learnt from it; ``again``: nor is, and its
            prompts are sampled anew, by the newest weights; ``shorten``: the step is as much shorter as the noise is
            beyond it, so that rate × second moment is what it would be at the bound.

    Attributes:
        count: all of them.
        still: steps in a row, up to now, in which the policy did not move.
        factor: of the learning rate, for this batch.
    """

    def __init__(self, most: float | None, beyond: Literal["drop", "again", "shorten"] = "drop"):
        self.most, self.beyond, self.count, self.still, self.factor = most, beyond, 0, 0, 1.0
        self.dropped = False  # whether the last batch was

    def judge(self, stats: StepStatistics, step: int) -> bool:
        """Whether the step's batch is dropped; the first rank then says why. ``stats.refused`` is known."""
        age, noise = stats.batch.age, stats.growth
        self.dropped, self.factor = False, 1.0
        if self.most is not None and not stats.refused and age > self.still and noise > self.most:
            self.count += 1
            if self.beyond == "shorten":
                self.factor = self.most / noise
            else:
                self.dropped = True
        self.still = self.still + 1 if self.dropped or stats.refused else 0
        if self.dropped and of_run().rank == 0:
            log.warning(
                "step %d is dropped and nothing moves: its rollouts are of %d steps before, which multiplies the "
                "second moment of its gradients by %.3g, more than policy.max_noise=%g",
                *(step + 1, age, noise, self.most),
            )
        return self.dropped

    def asks_again(self) -> bool:
        """Whether the prompts of the last batch are to be sampled anew."""
        return self.dropped and self.beyond == "again"
