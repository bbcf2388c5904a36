"""Would a baseline that remembers a prompt's earlier responses be quieter? On runs whose 64 problems come again.

    python benchmarks/history.py [--quick]

A policy is trained at the constant rate that the contest has tuned, under the gradient-weighted baseline, N = 16,
G = 8, so that each problem is visited every fourth step. Every response's reward and exact ``n_i`` are kept, and then
asked what second moment ``(R_i − b_i)² n_i`` other baselines would have had on these responses:

- history: ``b_i = (Σ_{j≠i} w_j R_j + S)/(Σ_{j≠i} w_j + W)`` with the sums ``S`` of ``w R`` and ``W`` of ``w`` over the
  problem's earlier visits, which count ``γ`` times less with each visit since;
- history alone: ``b = S/W``.

Nothing in them depends on ``o_i``, so that they are unbiased. Weights are ``n_j``, or all 1, as rivals have them (arXiv
2505.07527, 2603.18444). What is quieter is below 1: the moment is over that of the leave-one-out gradient-weighted
baseline, from the second visit on. Groups of equal rewards count: to the history they may be news. Intervals are 95 %,
from resampled steps. ``--quick``: eight steps of one task.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from contest import Case, Runs
from lightning import Trainer
from lost import HORIZON, TASKS, norms_of
from report import Figure, write
from results import CONTEST, RIVAL
from tasks import DRAWS, with_interval
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import composed, observed

from callbacks.observer import Observer
from oblr.baselines.leave_one_out import leave_one_out_means
from oblr.policy.model import TokenScorer, load_model
from oblr.policy.step import PolicyModule
from oblr.types import RolloutBatch

PROBLEMS, SEEDS = 64, (11, 12)
#: Steps of the second to the eighth visit, and of the ninth to the last.
PHASES = {"visits 2 to 8": (4, 32), "visits 9 to 25": (32, 100)}
DISCOUNTS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Step:
    """A step's problems, and of their responses rewards and exact norms ``n_i``, float64 [N, G] both."""

    problems: list[str]
    rewards: Tensor
    norms: Tensor


class Steps(Observer):
    """Keeps what every step saw. Norms are measured by a scorer of its own: the run is as it would be."""

    def __init__(self, scorer: TokenScorer):
        self.scorer, self.seen = scorer, list[Step]()

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        vector_to_parameters(parameters_to_vector(policy.scorer.parameters()).detach(), self.scorer.parameters())
        problems = [batch.group(q)[0].problem.id for q in range(batch.n_groups)]
        self.seen.append(Step(problems, batch.rewards.double(), norms_of(batch, self.scorer)))


def uniform(norms: Tensor) -> Tensor:
    return torch.ones_like(norms)


def weighted(norms: Tensor) -> Tensor:
    return norms


def second_moments(
    steps: Sequence[Step], weigh: Callable[[Tensor], Tensor], discount: float, alone: bool = False
) -> Tensor:
    """Mean of ``(R_i − b_i)² n_i`` of every step, [T].

    Args:
        weigh: from norms to weights.
        discount: γ; 0 remembers nothing.
        alone: whether the history is all that the baseline is made of, where there is one.
    """
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))  # S and W
    moments = []
    for step in steps:
        weights = weigh(step.norms)
        history = torch.stack([sums[problem] for problem in step.problems])
        mean = torch.where(history[:, 1] > 0, history[:, 0] / history[:, 1], 0)
        # to each response its problem's history is one more of the others, of weight W
        rewards = torch.cat([step.rewards, mean[:, None]], 1)
        baselines = leave_one_out_means(rewards, torch.cat([weights, history[:, 1:]], 1))[:, :-1]
        if alone:
            baselines = torch.where(history[:, 1:] > 0, mean[:, None], baselines)
        moments.append(((step.rewards - baselines).square() * step.norms).mean())
        for problem, w, r in zip(step.problems, weights, step.rewards, strict=True):
            sums[problem] = discount * (sums[problem] + torch.stack([(w * r).sum(), w.sum()]))
    return torch.stack(moments)


def figures_of(task: str, runs: Sequence[Sequence[Step]], phases: dict[str, tuple[int, int]]) -> Iterator[Figure]:
    asked: dict[str, tuple[Callable[[Tensor], Tensor], float, bool]] = {
        f"{name}, γ = {discount:g}{', history alone' * alone}": (weigh, discount, alone)
        for name, weigh in (("weighted", weighted), ("uniform", uniform))
        for alone in (False, True)
        for discount in DISCOUNTS
        if discount or not alone
    }
    found = {name: [second_moments(run, *choice) for run in runs] for name, choice in asked.items()}
    for phase, (first, last) in phases.items():
        of_phase = {name: torch.cat([moments[first:last] for moments in of_runs]) for name, of_runs in found.items()}
        plain = of_phase["weighted, γ = 0"]
        drawn = torch.randint(len(plain), (DRAWS, len(plain)), generator=torch.Generator().manual_seed(0))
        for name, moments in of_phase.items():
            ratio, resampled = moments.mean() / plain.mean(), moments[drawn].mean(1) / plain[drawn].mean(1)
            yield with_interval(f"{task}, {phase}, {name}: second moment", "× leave-one-out", ratio, resampled)


def runs_of(task: str, steps: int, seeds: tuple[int, ...], problems: int) -> list[list[Step]]:
    rate = Runs(CONTEST, makes=False).tuned(Case(task, RIVAL, HORIZON))
    scorer = TokenScorer(load_model(str(composed(["paths.output_dir=unused"], task).policy.path), "float32"), 1.0)
    runs = []
    for seed in seeds:
        kept = Steps(scorer)
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
