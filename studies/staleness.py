"""Steps on responses of an older policy: many runs at once of a policy small enough to know its gradient."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import neighbours  # noqa: F401
import torch
from laboratory import Laboratory, Policies, centred
from torch import Tensor

from oblr.baselines.leave_one_out import leave_one_out_means


@dataclass(frozen=True)
class Seen:
    """What a rule knows of a step of R runs.

    Attributes:
        factor: Theorem 4's ``‖∇J‖²/(‖∇J‖² + tr H/N)``, with the true gradient and the noise of two like steps, [R].
        ess: effective sample size of the importance weights over their number, ``(Σw)²/(n Σw²)``, [R].
        share: of the run that is behind, in [0, 1).
    """

    factor: Tensor
    ess: Tensor
    share: float


#: Learning rates [R], or one for all.
Rule = Callable[[Seen], Tensor | float]


class Stale(Policies):
    """``runs`` runs of the laboratory's policy. A step has a group of ``group_size`` responses to each prompt."""

    def __init__(self, lab: Laboratory, runs: int, group_size: int = 8):
        super().__init__(lab)
        self.runs, self.group_size = runs, group_size

    def gradients(self, theta: Tensor) -> Tensor:
        """``∇ log π(a|q)`` [R, P, K, D]."""
        return centred(self.lab.features, self.policies(theta))

    def gradient(self, theta: Tensor) -> Tensor:
        """``∇J`` [R, D]."""
        gains = self.policies(theta) * self.lab.rewards
        return (gains[..., None] * self.gradients(theta)).sum(2).mean(1)

    def sample(self, theta: Tensor, behaviour: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A step ``ĝ`` [R, D] of the policy ``theta`` on responses of ``behaviour``, weighted by ``w = π/μ``, under the
        gradient-weighted baseline, and the effective share of these weights, [R]."""
        older = self.policies(behaviour)
        chosen = torch.multinomial(older.flatten(0, 1), self.group_size, True, generator=generator)
        chosen = chosen.view(*older.shape[:2], self.group_size)  # [R, P, G]
        weights = (self.policies(theta) / older).gather(2, chosen)
        index = chosen[..., None].expand(-1, -1, -1, self.lab.features.shape[2])
        gradients = self.gradients(theta).gather(2, index)
        rewards = self.lab.rewards.expand_as(older).gather(2, chosen)
        baselines = leave_one_out_means(rewards, weights.square() * gradients.square().sum(3))
        gradient = ((weights * (rewards - baselines))[..., None] * gradients).mean((1, 2))
        return gradient, weights.sum((1, 2)).square() / weights.square().sum((1, 2)) / weights[0].numel()

    def run(self, rule: Rule, lag: int, steps: int, seed: int) -> Tensor:
        """Mean objective over the last quarter of the steps, [R]; responses are of the policy ``lag`` steps before."""
        generator = torch.Generator().manual_seed(seed)
        theta = self.lab.theta.expand(self.runs, -1)
        policies: deque[Tensor] = deque([theta], maxlen=lag + 1)
        reached = []
        for step in range(steps):
            (gradient, ess), (other, _) = (self.sample(theta, policies[0], generator) for _ in range(2))
            signal, noise = self.gradient(theta).square().sum(1), (gradient - other).square().sum(1) / 2
            rate = torch.as_tensor(rule(Seen(signal / (signal + noise), ess, step / steps)), dtype=theta.dtype)
            theta = theta + rate.expand(self.runs)[:, None] * gradient
            policies.append(theta)
            reached.append(self.objective(theta))
        return torch.stack(reached[-max(steps // 4, 1) :]).mean(0)
