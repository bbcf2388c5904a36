"""What others have proposed against long steps and noise: rows of the table in ``results.py`` alone, no settings.

Each is as its paper has it where that is known, and says where it is not.
"""

import math
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import neighbours  # noqa: F401
import torch
from torch import Tensor

from oblr.batch.types import Moments
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.schedules.base import Schedule
from oblr.schedules.snr import SNRSchedule


class RootSNRSchedule(SNRSchedule):
    """``η_t = η₀ · (N·SNR/(1 + N·SNR))^½``: Theorem 4's factor, which gives up later."""

    def __call__(self, moments: Moments, step: int) -> float:
        return math.sqrt(self.eta0 * super().__call__(moments, step))


class TimedSchedule(Schedule):
    """``η₀`` until the noise surges at step s; from then on it halves every ``1.8 s`` steps, down to ``η₀/10``.

    After arXiv 2602.01826, which sees a surge of the noise in the length of responses, and halves in steps. Here
    responses do not grow: the surge is that of ``‖ĝ‖²``, averaged over about ten steps, over its mean in the first.

    Args:
        lr: ``η₀``.
        window: first steps, which say what is usual.
        surge: how many times that is a surge.
    """

    def __init__(self, lr: float, window: int = 10, surge: float = 1.5):
        self.lr, self.window, self.surge = lr, window, surge
        self.usual = self.average = 0.0
        self.start: int | None = None

    def __call__(self, moments: Moments, step: int) -> float:
        square = moments.mean_square
        if step < self.window:
            self.usual = self.average = self.usual + (square - self.usual) / (step + 1)
            return self.lr
        self.average += (square - self.average) / self.window
        if self.start is None and self.average > self.surge * self.usual:
            self.start = step
        if self.start is None:
            return self.lr
        return self.lr * max(0.5 ** ((step - self.start) / (1.8 * self.start)), 0.1)


class Norms:
    """Norms of the gradients so far, and the median of them."""

    def __init__(self) -> None:
        self.seen = list[float]()

    def usual(self, norm: float) -> float:
        """The median norm, this one included."""
        self.seen.append(norm)
        return median(self.seen)


class ClippedAdamW(torch.optim.AdamW):
    """AdamW of gradients that are no longer than their median so far: they are clipped before its moments see them."""

    def __init__(self, parameters: Iterable[Tensor], **options: Any):
        super().__init__(parameters, **options)
        self.norms = Norms()

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        torch.nn.utils.clip_grads_with_norm_(parameters, self.norms.usual(norm.item()), norm)
        return super().step(closure)


class GatedSGD(torch.optim.SGD):
    """SGD that leaves a step out where the gradient of the head surges (after arXiv 2605.19425).

    The paper gates where a batch is used again, by a threshold of its own that is not known here: a surge is twice the
    median so far. The head is the parameter with the most rows; where it is tied, that is the embedding too.
    """

    def __init__(self, parameters: Iterable[Tensor], **options: Any):
        super().__init__(parameters, **options)
        self.norms = Norms()

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        head = max((p for group in self.param_groups for p in group["params"]), key=len)
        norm = head.grad.norm().item()
        return super().step(closure) if norm <= 2 * self.norms.usual(norm) else None


class VLNormLoss(PolicyGradientLoss):
    """``z_i = G |o_i|^−α / Σ_j |o_j|^−α`` with α = 1 (VL Norm, arXiv 2509.07558), over the responses of a group.

    It has least variance where that of a response's gradient grows as its length. The paper sums over the batch.
    """

    def length_factors(self, lengths: Tensor) -> Tensor:
        shares = 1 / lengths.double()
        return shares / shares.mean(1, keepdim=True)
