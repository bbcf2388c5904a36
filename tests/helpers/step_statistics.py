"""The statistics of a step, made by hand, and a policy that keeps what is logged of them."""

from types import SimpleNamespace

import torch
from conftest import make_rollouts

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.types import LogprobGap, Moments, RolloutBatch, StepStatistics
from oblr.gradnorm.measure import GradNorms
from oblr.record.tags import meaning
from oblr.schedules.snr import SNRSchedule

NAN = float("nan")
LENGTHS = [2, 4, 1, 3, 5, 5]


def make_statistics(first=0, **changes) -> StepStatistics:
    """Three groups of two, the last of which is dead; this rank has two of them, from ``first`` on."""
    rollouts = make_rollouts(LENGTHS, [1, 0, 0, 1, 1, 1])
    fields = {
        "batch": RolloutBatch(rollouts[2 * first : 2 * first + 4], 2, 1),
        "first": first,
        "problems": torch.tensor([1, 2, 3]),
        "scores": torch.tensor([[1.0, 0], [0, 1], [1, 1]]),
        "rewards": torch.tensor([[1.0, 0], [0, 1], [1, 1]]),
        "greedy_rewards": None,
        "lengths": torch.tensor(LENGTHS).view(3, 2),
        "finished": torch.tensor([[1.0, 1], [0, 1], [1, 1]]),
        "live": torch.tensor([True, True, False]),
        "square_norms": torch.tensor([[4.0, 16], [9, 1], [NAN, NAN]], dtype=torch.float64),
        "reward_weights": torch.tensor([[4.0, 64], [9, 1], [NAN, NAN]], dtype=torch.float64),
        "advantages": torch.tensor([[1.0, -1], [-0.5, 0.5], [0, 0]]),
        "coefficients": torch.tensor([[0.5, 1], [0.25, 0.25], [0, 0]], dtype=torch.float64),
        "group_squares": torch.tensor([2.0, 4, 0], dtype=torch.float64),
        "log_ratios": torch.tensor([[1.0, 2], [1, 1], [NAN, NAN]], dtype=torch.float64).log(),
        "entropies": 1.25 * torch.tensor(LENGTHS, dtype=torch.float64).view(3, 2),
        "logprob_gap": LogprobGap(0.001, 0.01, 0.25),
        "moments": Moments(3, 3.0, 6.0),
        "lr": 0.02,
    }
    return StepStatistics(**fields | changes)


class Watch:
    """A policy that keeps what is logged."""

    def __init__(self, **fields):
        self.logged: dict[str, float] = {}
        self.baseline, self.schedule = GradientWeightedBaseline(), SNRSchedule(0.1)
        vars(self).update(fields)

    def log_dict(self, metrics):
        assert self.logged.keys().isdisjoint(metrics)
        assert all(meaning(tag) for tag in metrics), metrics
        self.logged |= {tag: float(value) for tag, value in metrics.items()}


class Policy(Watch):
    """With exact norms of responses, whose tokens have one coefficient."""

    per_token = False

    def __init__(self, tier="exact", per_token=False):
        super().__init__(gradnorm=GradNorms(tier), loss=SimpleNamespace(per_token=per_token, signed=False))


class Run:
    """In a trainer's stead: a rank of two, at the first step."""

    current_epoch, global_rank, world_size = 0, 1, 2
