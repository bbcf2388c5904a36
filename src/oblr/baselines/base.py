"""What a baseline is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """The complete groups of a micro-batch, and what is known of the whole step before any pass.

    Attributes:
        rewards: float32 [n, G].
        weights: ``ρ_i² n_i``, float64 [n, G]; meaningless unless the baseline ``needs_norms``.
        lengths: response tokens, int64 [n, G].
        step_rewards: of all groups of the step, on all ranks, float32 [N, G].
    """

    rewards: Tensor
    weights: Tensor
    lengths: Tensor
    step_rewards: Tensor


class Baseline(ABC):
    """Turns the rewards of complete groups into advantages ``A_i = R_i − b_i``.

    Attributes:
        needs_norms: whether ``weights`` matter; where they do not, the step saves the norm pass.
        leave_one_out: whether it needs at least two responses per prompt.
    """

    needs_norms: ClassVar[bool] = False
    leave_one_out: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, groups: Groups) -> Tensor:
        """Advantages, float32 [n, G]."""

    def live(self, step_rewards: Tensor) -> Tensor:
        """bool [N]: the groups that can have advantages at all, from the rewards of the step [N, G]."""
        return live_groups(step_rewards)

    def observe(self, groups: Groups) -> None:
        """Learn from a finished step, for later ones."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def live_groups(rewards: Tensor) -> Tensor:
    """bool [N]: groups whose rewards are not all equal; others have no advantage under a baseline of the group."""
    return (rewards != rewards[:, :1]).any(1)


def others_mean(groups: Groups) -> Tensor:
    """Mean reward of the step's other groups, float64 [n, 1]; that of the group itself where it is the only one."""
    total, count = groups.step_rewards.double().sum(), groups.step_rewards.numel()
    own = groups.rewards.double().sum(1, keepdim=True)
    size = groups.rewards.shape[1]
    return own / size if count == size else (total - own) / (count - size)


def batch_live(step_rewards: Tensor) -> Tensor:
    """bool [N]: all groups, unless no reward of the step differs from another."""
    return torch.full((len(step_rewards),), bool((step_rewards != step_rewards.flatten()[0]).any()))
