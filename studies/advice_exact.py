"""Is the doctor's advice worth following, where expected rewards are known exactly?

    python studies/advice_exact.py [--quick]

As ``advice.py``, of policies of responses of six tokens (``tests/helpers/laboratory.py``): 64 steps of 128 responses,
from few prompts in large groups and a small rate, six runs of advice at most, and a grid of four shapes and seven rates
as the rival, of which the best is the best of these very seeds. Four tasks of 16 prompts: rewards anywhere in [0, 1];
one response in ten paid 1; prompts of which half are easy and half are hard; and the share of a response's tokens
before its first wrong one. The measure is the expected reward of the policy, the mean over the last quarter of the
steps; twenty seeds, each with a policy and rewards of its own. It says what such policies say.
``--quick``: two seeds of one task, and a small grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import neighbours  # noqa: F401
import torch
from advice import HORIZON, STEP, Place, Task, grid, late
from figures import asked_to_be_quick, write
from laboratory import Sequences
from torch import Tensor

from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.statistics.log import Response, StepRecord

PROMPTS, LENGTH, SIZE = 16, 6, 32
#: Those below were looked at when the doctor's bounds were chosen.
SEEDS = range(8, 28)
START, RATES = Place(4, 32, 0.0625), (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TASKS = ("graded", "rare", "uneven", "stepwise")


def laboratory(task: str, seed: int) -> Sequences:
    """A policy, and the rewards of a task."""
    lab = Sequences(PROMPTS, 2, SIZE, seed, LENGTH)
    if task == "rare":
        lab.rewards = (lab.rewards > 0.9).double()
    elif task == "uneven":
        bounds = torch.tensor([0.3, 0.95], dtype=torch.float64).repeat(PROMPTS // 2)
        lab.rewards = (lab.rewards > bounds[:, None]).double()
    elif task == "stepwise":
        responses = torch.cartesian_prod(*[torch.arange(2)] * LENGTH)
        targets = lab.rewards.argmax(1)
        right = responses[None] == responses[targets][:, None]
        lab.rewards = right.double().cumprod(2).mean(2)
    return lab


@dataclass(frozen=True)
class ExactTask(Task):
    """Runs of policies that can be computed exactly.

    Attributes:
        found: what runs have come to: their steps, and the expected reward after each.
    """

    found: dict[tuple[Place, int], tuple[list[StepRecord], list[float]]] = field(default_factory=dict)

    def run(self, place: Place, seed: int) -> list[StepRecord]:
        if (place, seed) not in self.found:
            self.found[place, seed] = learn(laboratory(self.name, seed), place, seed)
        return self.found[place, seed][0]

    def late(self, place: Place, seed: int) -> float:
        self.run(place, seed)
        return late(self.found[place, seed][1])

    def best(self, seeds: Sequence[int], grid: Sequence[Place]) -> Place:
        """Of the whole grid, by the seeds that judge it: there is no seed that tells of another policy."""
        return max(grid, key=lambda place: fmean(self.late(place, seed) for seed in seeds))


def learn(lab: Sequences, place: Place, seed: int) -> tuple[list[StepRecord], list[float]]:
    """The steps of a run of as many responses as any, and the policy's expected reward after each."""
    generator, baseline = torch.Generator().manual_seed(seed), GradientWeightedBaseline()
    records, expected, before = list[StepRecord](), list[float](), torch.zeros_like(lab.theta)
    for step in range(max(HORIZON * STEP // (place.prompts * place.group), 1)):
        prompts, responses = lab.sample(place.prompts, place.group, generator)
        at = prompts[:, None], responses
        own, rewards, norms = lab.gradients[at], lab.rewards[at], lab.square_norms[at]
        advantages = baseline(Groups(rewards, norms, torch.full_like(rewards, LENGTH), rewards))
        parts = advantages[..., None] * own / advantages.numel()
        gradient = parts.sum((0, 1))
        records.append(record(step + 1, place, rewards, norms, advantages, parts, cosine(gradient, before)))
        lab.theta, before = lab.theta + place.rate * gradient, gradient
        expected.append(lab.objective(lab.theta).item())
    return records, expected


def record(
    step: int,
    place: Place,
    rewards: Tensor,
    norms: Tensor,
    advantages: Tensor,
    parts: Tensor,
    turn: float | None,
) -> StepRecord:
    """What the library would log of a step.

    Args:
        rewards, norms, advantages: of the responses, [N, G].
        parts: of these in the step's gradient, [N, G, D].
        turn: cosine with the step before.
    """
    gradient, squares = parts.sum((0, 1)), parts.square().sum(2)
    alignments = (parts @ gradient) / (squares.sqrt() * gradient.norm()).clamp(min=1e-300)
    responses = [
        Response(q, square, norm, alignment, reward, advantage, LENGTH, finished=True, log_ratio=0.0)
        for q, of_group in enumerate(torch.stack([squares, norms, alignments, rewards, advantages], 2).tolist())
        for square, norm, alignment, reward, advantage in of_group
    ]
    of_groups = (place.prompts**2 * parts.sum(1).square().sum(1)).tolist()
    return StepRecord(
        *(step, gradient.square().sum().item(), of_groups, responses, place.rate),
        clipped=1.0,
        turn=turn,
        onward=turn,
        plain=True,
    )


def cosine(one: Tensor, other: Tensor) -> float | None:
    """Of the angle between two gradients; None where one is 0."""
    lengths = (one.norm() * other.norm()).item()
    return (one @ other).item() / lengths if lengths else None


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    torch.set_num_threads(1)
    names, seeds, rates = (TASKS[:1], SEEDS[:2], RATES[3:5]) if quick else (TASKS, SEEDS, RATES)
    figures = [figure for name in names for figure in ExactTask(name, START).figures(seeds, grid(rates))]
    write("advice_exact-quick" if quick else "advice_exact", figures)


if __name__ == "__main__":
    main()
