"""What does a step lose to its noise? Steps by several baselines, judged on responses that had no part in them.

    python studies/lost.py [--quick]

A policy is trained at the constant rate that the contest has tuned for its task, under the gradient-weighted baseline.
At some of its steps, and at no cost to the run, units of two groups of N = 16 prompts × G = 8 responses are drawn, with
responses to 64 further prompts that judge them. A unit's steps ``Δ = η ĝ`` are those of either group and of their mean,
for each baseline:

- promised: ``Δ·∇J``, what the step would gain if the objective were straight;
- gained: ``J(θ + Δ) − J(θ) = E (w − 1)(R − b)`` with the weights ``w = π_(θ+Δ)/π_θ`` of responses from before the step;
- lost: promised less gained. It is what curvature takes, ``½ Δᵀ(−∇²J)Δ`` where the step is short, and that is from the
  signal and from the noise. Noise halves when N is doubled: twice what the mean of the groups loses less than
  one of them is what a step of N = 16 loses to noise.

Promised is the same for all unbiased baselines, on average; what one gains over another it gains by losing less. Along
a parabola a single step does best where half of what is promised is lost, at ``η · promised/(2 lost)``: the rate that
Theorem 4 looks for. Intervals are 95 %, from resampled units. ``--quick``: one unit.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import neighbours  # noqa: F401
import torch
from contest import Case, Runs
from figures import Figure, write
from lightning import Trainer
from results import CONTEST, RIVAL
from tasks import with_interval
from tiers import measure
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import composed, observed

from callbacks.observer import Observer, rollout_data
from oblr.baselines.leave_one_out import leave_one_out_means
from oblr.batch.packing import pack
from oblr.batch.types import Rollout, RolloutBatch
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.policy.step import PolicyModule
from oblr.run.randomness import derived_seed

TASKS = ("pocket", "pocket_graded", "pocket_rare")
PROMPTS, JUDGES, UNITS, TOGETHER, DRAWS = 16, 64, 4, 64, 2000
HORIZON, STUDIED, SEEDS = 100, (0, 10, 30, 90), (11, 12, 13)
BASELINES = ("rloo", "gradient_weighted", "none")


@dataclass(frozen=True)
class Snapshot:
    """A policy during its run: parameters [D], and what it answered to problems that are not trained on."""

    step: int
    parameters: Tensor
    batch: RolloutBatch


class Snapshots(Observer):
    """Takes snapshots before some of the steps. Their responses are to all held-out problems."""

    def __init__(self, steps: tuple[int, ...], seed: int):
        self.steps, self.seed = steps, seed
        self.taken: list[Snapshot] = []

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        if trainer.current_epoch in self.steps:
            data = rollout_data(trainer)
            problems = [data.held_out[i] for i in range(len(data.held_out))]
            seeds = [derived_seed("lost", self.seed, trainer.current_epoch, q) for q in range(len(problems))]
            answered = RolloutBatch(data.rollouts(problems, data.sampling, seeds), data.sampling.n, 0)
            parameters = parameters_to_vector(policy.scorer.parameters()).detach().clone()
            self.taken.append(Snapshot(trainer.current_epoch, parameters, answered))


def prompts_of(batch: RolloutBatch, first: int, count: int) -> RolloutBatch:
    size = batch.group_size
    return replace(batch, rollouts=batch.rollouts[first * size : (first + count) * size])


def logs_of(model: PolicyModel, rollouts: list[Rollout]) -> Tensor:
    """``log π(o_i|q)``, float64 [S]."""
    packed = pack(rollouts)
    logs = model(packed).logprobs.double()
    return torch.zeros(len(rollouts), dtype=torch.float64).index_add(0, packed.target_segments.ids, logs)


def all_logs(model: PolicyModel, batch: RolloutBatch) -> Tensor:
    """``log π(o_i|q)`` of a batch, float64 [P, G]; not differentiable."""
    with torch.no_grad():
        logs = [
            logs_of(model, batch.rollouts[start : start + TOGETHER])
            for start in range(0, len(batch.rollouts), TOGETHER)
        ]
    return torch.cat(logs).view(-1, batch.group_size)


def gradient(model: PolicyModel, batch: RolloutBatch, advantages: Tensor) -> Tensor:
    """``ĝ``, the mean of ``A_i ∇ log π(o_i|q)``, [D]."""
    model.zero_grad()
    for start in range(0, len(batch.rollouts), TOGETHER):
        some = slice(start, start + TOGETHER)
        (logs_of(model, batch.rollouts[some]) * advantages.flatten()[some]).sum().div(len(batch.rollouts)).backward()
    return parameters_to_vector(p.grad for p in model.parameters())


def norms_of(batch: RolloutBatch, model: PolicyModel) -> Tensor:
    """``n_i``, float64 [P, G]."""
    return measure(batch, model)["exact"].double()


def advantages_of(batch: RolloutBatch, norms: Tensor, baseline: str) -> Tensor:
    """``R_i − b_i``, float64 [P, G]."""
    rewards = batch.rewards.double()
    if baseline == "none":
        return rewards
    return rewards - leave_one_out_means(rewards, torch.ones_like(norms) if baseline == "rloo" else norms)


class Judge:
    """Tells what a step is worth, by responses to other prompts than the step's."""

    def __init__(self, model: PolicyModel, batch: RolloutBatch):
        self.model, self.batch = model, batch
        self.before = all_logs(model, batch)
        self.advantages = advantages_of(batch, norms_of(batch, model), "gradient_weighted")
        self.slope = gradient(model, batch, self.advantages)

    def __call__(self, step: Tensor) -> Tensor:
        """Promised and gained by parameters that move by ``step`` [D], float64 [2]."""
        start = parameters_to_vector(self.model.parameters()).detach()
        vector_to_parameters(start + step, self.model.parameters())
        weights = (all_logs(self.model, self.batch) - self.before).exp()
        vector_to_parameters(start, self.model.parameters())
        promised = step.double() @ self.slope.double()
        return torch.stack([promised, ((weights - 1) * self.advantages).mean()])


@dataclass(frozen=True)
class Unit:
    """What steps of one place did; B baselines.

    Attributes:
        steps: promised and gained by either group's step and by their mean's, float64 [B, 3, 2].
        doubled: the same by steps of the gradient-weighted baseline at twice the rate, mean of the groups, [2].
        moments: second moments of a response's gradient, [B].
    """

    steps: Tensor
    doubled: Tensor
    moments: Tensor


def unit_of(batch: RolloutBatch, model: PolicyModel, rate: float) -> Unit:
    """Of a batch of two groups of prompts and of those that judge them."""
    groups = [prompts_of(batch, first, PROMPTS) for first in (0, PROMPTS)]
    judge = Judge(model, prompts_of(batch, 2 * PROMPTS, JUDGES))
    norms = [norms_of(group, model) for group in groups]
    steps, moments = [], []
    for baseline in BASELINES:
        advantages = [advantages_of(group, norm, baseline) for group, norm in zip(groups, norms, strict=True)]
        moments.append(torch.stack([(a.square() * n).mean() for a, n in zip(advantages, norms, strict=True)]).mean())
        taken = [rate * gradient(model, group, a) for group, a in zip(groups, advantages, strict=True)]
        steps.append(torch.stack([judge(step) for step in (*taken, sum(taken) / 2)]))
        if baseline == "gradient_weighted":
            doubled = torch.stack([judge(2 * step) for step in taken]).mean(0)
    return Unit(torch.stack(steps), doubled, torch.stack(moments))


def figures_of(name: str, units: list[Unit]) -> Iterator[Figure]:
    """Of one step of a task."""
    drawn = torch.randint(len(units), (DRAWS, len(units)), generator=torch.Generator().manual_seed(0))

    def ratio(title: str, unit: str, above: Tensor, below: Tensor) -> Figure:
        """Of means over units, [U] both."""
        return with_interval(title, unit, above.mean() / below.mean(), above[drawn].mean(1) / below[drawn].mean(1))

    steps, moments = (torch.stack([getattr(u, part) for u in units]) for part in ("steps", "moments"))
    doubled, one = torch.stack([u.doubled[1] for u in units]), torch.ones(len(units), dtype=torch.float64)
    promised = steps[:, :, :2, 0].mean((1, 2))  # unbiased baselines promise the same
    lost = steps[..., 0] - steps[..., 1]
    of_one, of_two = lost[:, :, :2].mean(2), lost[:, :, 2]  # [U, B]
    gained, to_noise = steps[:, :, :2, 1].mean(2), 2 * (of_one - of_two)
    yield ratio(f"{name}: promised", "points a step", 100 * promised, one)
    for k, baseline in enumerate(BASELINES):
        yield ratio(f"{name}, {baseline}: lost", "% of promised", 100 * of_one[:, k], promised)
        yield ratio(f"{name}, {baseline}: lost to noise", "% of promised", 100 * to_noise[:, k], promised)
        yield ratio(f"{name}, {baseline}: best rate of a single step", "× the run's", promised, 2 * of_one[:, k])
        if k:
            yield ratio(
                f"{name}, {baseline}: gained over RLOO's", "points a step", 100 * (gained[:, k] - gained[:, 0]), one
            )
            yield ratio(f"{name}, {baseline}: second moment", "× RLOO's", moments[:, k], moments[:, 0])
    weighted = BASELINES.index("gradient_weighted")
    yield ratio(f"{name}, twice the rate: gained", "× at the rate", doubled, gained[:, weighted])


def task_figures(task: str, studied: tuple[int, ...], seeds: tuple[int, ...], units: int) -> Iterator[Figure]:
    rate = Runs(CONTEST, makes=False).tuned(Case(task, RIVAL, HORIZON))
    overrides = (*RIVAL.overrides, f"eta0={rate:g}", f"steps={studied[-1] + 1}")
    size = 2 * PROMPTS + JUDGES
    found: dict[int, list[Unit]] = {step: [] for step in studied}
    model = PolicyModel(load_model(str(composed(["paths.output_dir=unused"], task).policy.path), "float32"), 1.0)
    for seed in seeds:
        snapshots = Snapshots(studied, seed)
        observed((*overrides, f"data.held_out.size={units * size}", f"seed={seed}"), snapshots, task)
        for taken in snapshots.taken:
            vector_to_parameters(taken.parameters, model.parameters())
            parts = (prompts_of(taken.batch, size * k, size) for k in range(units))
            found[taken.step] += [unit_of(part, model, rate) for part in parts]
    yield Figure(f"{task}: η", rate, "tuned, constant")
    for step, of_step in found.items():
        yield from figures_of(f"{task}, after {step} steps", of_step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    if parser.parse_args().quick:
        return write("lost-quick", list(task_figures("pocket", (0,), SEEDS[:1], 1)))
    write("lost", [figure for task in TASKS for figure in task_figures(task, STUDIED, SEEDS, UNITS)])


if __name__ == "__main__":
    main()
