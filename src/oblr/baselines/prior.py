"""Priors of the optimal baseline: sums of weighted rewards and of weights from outside the group.

A prior is a pair ``(S, W)``, the sums of ``w R`` and of ``w`` over responses that are none of the group's. The weights
``w = ρ² ‖∇θ log π(o|q)‖²`` are absolute, since a lone wrong response whose weight is huge is known only by its size.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from oblr.baselines.base import Groups


class Prior(ABC):
    """Gives ``(S, W)`` for each group of a step, from what no response of that group has touched.

    Attributes:
        whole_step: whether the weights of all groups of the step are needed first, in ``Groups.step_weights``.
    """

    whole_step: ClassVar[bool] = False

    def __init__(self, decay: float):
        self.decay = decay

    @abstractmethod
    def __call__(self, groups: Groups) -> Tensor:
        """``S`` and ``W``, float64 [2, n]; zeros where nothing is known."""

    def learn(self, groups: Groups) -> None:
        """Remember a finished step, all of whose groups are given."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class OtherGroups(Prior):
    """Means of ``w R`` and ``w`` over the step's other groups; it has no memory."""

    whole_step = True

    def __call__(self, groups: Groups) -> Tensor:
        assert groups.step_weights is not None
        size = groups.rewards.shape[1]
        others = groups.step_weights.numel() - size
        if others == 0:
            return torch.zeros(2, len(groups.rewards), dtype=torch.float64)
        step = _sums(groups.step_rewards, groups.step_weights).sum(1, keepdim=True)
        own = _sums(groups.rewards, groups.reward_weights)
        return (step - own).clamp(min=torch.tensor([[-torch.inf], [0.0]])) / others


class EarlierSteps(Prior):
    """Moving averages of ``w R`` and ``w`` over earlier steps; a step counts ``decay`` times less at each one since."""

    def __init__(self, decay: float):
        super().__init__(decay)
        self.sums, self.count = torch.zeros(2, dtype=torch.float64), 0.0

    def __call__(self, groups: Groups) -> Tensor:
        return (self.sums / max(self.count, 1e-300))[:, None].expand(2, len(groups.rewards))

    def learn(self, groups: Groups) -> None:
        self.sums = self.decay * self.sums + _sums(groups.rewards, groups.reward_weights).sum(1)
        self.count = self.decay * self.count + groups.rewards.numel()

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.count = state["sums"], state["count"]


class EarlierVisits(Prior):
    """Sums over all earlier responses to the same problem; a visit counts ``decay`` times less at each one since.

    Compare arXiv 2505.07527 and 2603.18444, whose histories have no weights.
    """

    def __init__(self, decay: float):
        super().__init__(decay)
        self.sums = dict[int, Tensor]()  # of a problem, float64 [2]

    def __call__(self, groups: Groups) -> Tensor:
        none = torch.zeros(2, dtype=torch.float64)
        return torch.stack([self.sums.get(problem, none) for problem in _problems(groups)], 1)

    def learn(self, groups: Groups) -> None:
        for problem, sums in zip(_problems(groups), _sums(groups.rewards, groups.reward_weights).T, strict=True):
            self.sums[problem] = self.decay * (self.sums.get(problem, 0) + sums)

    def state_dict(self) -> dict[str, Any]:
        sums = torch.stack([torch.zeros(2, dtype=torch.float64), *self.sums.values()])[1:]
        return {"problems": torch.tensor([*self.sums], dtype=torch.int64), "sums": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = dict(zip(state["problems"].tolist(), state["sums"], strict=True))


def _sums(rewards: Tensor, weights: Tensor) -> Tensor:
    """``Σ w R`` and ``Σ w`` of each group, float64 [2, n]."""
    return torch.stack([(weights * rewards.double()).sum(1), weights.double().sum(1)])


def _problems(groups: Groups) -> list[int]:
    assert groups.problems is not None
    return groups.problems.tolist()
