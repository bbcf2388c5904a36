"""Would a baseline that remembers a prompt's earlier responses be quieter? On runs whose 64 problems come again.

    python studies/history.py [--quick]

A policy is trained at the constant rate that the contest has tuned, under the gradient-weighted baseline, N = 16,
G = 8, so that each problem is visited every fourth step. Every response's reward and exact ``n_i`` are kept, and then
asked what second moment ``(R_i − b_i)² n_i`` other baselines would have had on these responses:

- history: the gradient-weighted baseline with ``prior=history`` and ``K = 1``, by its decay ``γ``;
- history alone: the mean of the earlier visits, without the group's.

Nothing in them depends on ``o_i``, so that they are unbiased. Weights are ``n_j``, or all 1, as rivals have them (arXiv
2505.07527, 2603.18444). What is quieter is below 1: the moment is over that of the leave-one-out gradient-weighted
baseline, from the second visit on. Groups of equal rewards count: to the history they may be news. Intervals are 95 %,
from resampled steps. ``--quick``: eight steps of one task.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

import neighbours  # noqa: F401
import torch
from contest import Case, Runs
from figures import Figure, write
from lightning import Trainer
from lost import HORIZON, TASKS, norms_of
from results import CONTEST, RIVAL
from tasks import DRAWS, with_interval
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import composed, observed

from callbacks.observer import Observer
from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.types import RolloutBatch
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.policy.step import PolicyModule

PROBLEMS, SEEDS = 64, (11, 12)
#: Steps of the second to the eighth visit, and of the ninth to the last.
PHASES = {"visits 2 to 8": (4, 32), "visits 9 to 25": (32, 100)}
DISCOUNTS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Steps(Observer):
    """Keeps what every step saw. Norms are measured by a model of its own: the run is as it would be."""

    def __init__(self, model: PolicyModel):
        self.model, self.seen = model, list[Groups]()

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        vector_to_parameters(parameters_to_vector(policy.scorer.parameters()).detach(), self.model.parameters())
        rewards, norms = batch.rewards.double(), norms_of(batch, self.model)
        self.seen.append(Groups(rewards, norms, batch.lengths, rewards, problems=batch.problems))


def second_moments(steps: Sequence[Groups], discount: float, weighted: bool = True, alone: bool = False) -> Tensor:
    """Mean of ``(R_i − b_i)² n_i`` of every step, [T].

    Args:
        weighted: whether the baseline knows ``n_i``; else its weights are all alike.
        alone: whether the history is all that the baseline is made of, where there is one.
    """
    baseline, moments = GradientWeightedBaseline(prior="history", pseudo_counts=[1.0], decay=discount), []
    assert baseline.prior is not None
    for step in steps:
        known = step if weighted else replace(step, reward_weights=torch.ones_like(step.reward_weights))
        advantages = baseline(known)
        if alone:
            sums, weight = baseline.prior(known)[..., None]
            advantages = torch.where(weight > 0, step.rewards - sums / weight, advantages)
        moments.append((advantages.square() * step.reward_weights).mean())
        baseline.learn(known)
    return torch.stack(moments)


def figures_of(task: str, runs: Sequence[Sequence[Groups]], phases: dict[str, tuple[int, int]]) -> Iterator[Figure]:
    asked = {
        f"{'weighted' if weighted else 'uniform'}, γ = {discount:g}{', history alone' * alone}": (
            discount,
            weighted,
            alone,
        )
        for weighted in (True, False)
        for alone in (False, True)
        for discount in DISCOUNTS
        if discount or not alone
    }
    found = {name: [second_moments(run, *settings) for run in runs] for name, settings in asked.items()}
    for phase, (first, last) in phases.items():
        of_phase = {name: torch.cat([moments[first:last] for moments in of_runs]) for name, of_runs in found.items()}
        plain = of_phase["weighted, γ = 0"]
        drawn = torch.randint(len(plain), (DRAWS, len(plain)), generator=torch.Generator().manual_seed(0))
        for name, moments in of_phase.items():
            ratio, resampled = moments.mean() / plain.mean(), moments[drawn].mean(1) / plain[drawn].mean(1)
            yield with_interval(f"{task}, {phase}, {name}: second moment", "× leave-one-out", ratio, resampled)


def runs_of(task: str, steps: int, seeds: tuple[int, ...], problems: int) -> list[list[Groups]]:
    rate = Runs(CONTEST, makes=False).tuned(Case(task, RIVAL, HORIZON))
    model = PolicyModel(load_model(str(composed(["paths.output_dir=unused"], task).policy.path), "float32"), 1.0)
    runs = []
    for seed in seeds:
        kept = Steps(model)
        settings = (f"eta0={rate:g}", f"steps={steps}", f"data.train.size={problems}", f"seed={seed}")
        observed((*RIVAL.overrides, *settings), kept, task)
        runs.append(kept.seen)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    if parser.parse_args().quick:
        runs = runs_of("pocket", 8, SEEDS[:1], 32)
        return write("history-quick", list(figures_of("pocket", runs, {"visits 2 to 4": (2, 8)})))
    figures = [f for task in TASKS for f in figures_of(task, runs_of(task, HORIZON, SEEDS, PROBLEMS), PHASES)]
    write("history", figures)


if __name__ == "__main__":
    main()
