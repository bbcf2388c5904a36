"""What a baseline is."""

from typing import Protocol

from torch import Tensor


class Baseline(Protocol):
    """Turns the rewards of complete groups into advantages.

    Attributes:
        needs_norms: whether ``weights`` matter; where they do not, the step saves the norm pass.
        leave_one_out: whether it needs at least two responses per prompt.
    """

    needs_norms: bool
    leave_one_out: bool

    def __call__(self, rewards: Tensor, weights: Tensor) -> Tensor:
        """Advantages [N, G] from rewards [N, G] and weights ``ρ_i² n_i`` [N, G], ignored unless ``needs_norms``."""


def live_groups(rewards: Tensor) -> Tensor:
    """bool [N]: groups whose rewards differ. All-equal rewards give zero advantages under every group baseline."""
    return (rewards != rewards[:, :1]).any(1)
