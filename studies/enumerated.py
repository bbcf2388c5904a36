"""Several steps of the laboratory by enumeration: where any learning rates lead, and which lead furthest."""

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from math import factorial, prod

import neighbours  # noqa: F401
import torch
from laboratory import Laboratory, Policies
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from oblr.baselines.leave_one_out import leave_one_out_means

#: Learning rates [M] of a step from where it begins, θ [M, D], and its number.
Rule = Callable[[Tensor, int], Tensor]


def multisets(items: int, size: int) -> tuple[Tensor, Tensor]:
    """Every unordered choice of ``size`` of ``items``, [S, size], and in how many orders it can be drawn, [S]."""
    found = list(combinations_with_replacement(range(items), size))
    orders = [factorial(size) // prod(factorial(choice.count(i)) for i in set(choice)) for choice in found]
    return torch.tensor(found), torch.tensor(orders, dtype=torch.float64)


class Horizon(Policies):
    """All that steps of N groups of G responses can do to the laboratory's policy, from M policies θ [M, D] at once."""

    def __init__(self, lab: Laboratory, n_groups: int = 2, group_size: int = 2):
        super().__init__(lab)
        prompts, responses = lab.rewards.shape
        chosen, orders = multisets(responses, group_size)
        self.prompts = torch.arange(prompts).repeat_interleave(len(chosen))[:, None]
        self.responses, self.orders = chosen.repeat(prompts, 1), orders.repeat(prompts) / prompts
        self.steps, self.step_orders = multisets(len(self.responses), n_groups)

    def outcomes(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Chances [M, S] of all that a step can sample, and its gradients ``ĝ`` [M, S, D]."""
        probabilities = self.policies(theta)
        centre = torch.einsum("mpk,pkd->mpd", probabilities, self.lab.features)
        gradients = self.lab.features - centre[:, :, None]
        at = (slice(None), self.prompts, self.responses)
        rewards = self.lab.rewards[at[1:]].expand(len(theta), -1, -1)
        advantages = rewards - leave_one_out_means(rewards, gradients.square().sum(3)[at])
        groups = (advantages[..., None] * gradients[at]).mean(2)
        chances = self.orders * probabilities[at].prod(2)
        return self.step_orders * chances[:, self.steps].prod(2), groups[:, self.steps].mean(2)

    def moments(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """``‖∇J‖²`` and ``E‖ĝ‖²``, [M]."""
        chances, gradients = self.outcomes(theta)
        mean = torch.einsum("ms,msd->md", chances, gradients)
        return mean.square().sum(1), (chances * gradients.square().sum(2)).sum(1)

    def curvature(self, theta: Tensor) -> Tensor:
        """``−E ĝᵀ ∇²J ĝ`` [M]: by how much the slope along a step falls, over the step's length."""
        chances, gradients = self.outcomes(theta)
        hessians = torch.stack([torch.autograd.functional.hessian(self._one, point) for point in theta])
        return -torch.einsum("ms,msd,mde,mse->m", chances, gradients, hessians, gradients)

    def _one(self, theta: Tensor) -> Tensor:
        return self.objective(theta[None])[0]

    def after(self, theta: Tensor, rates: Tensor) -> Tensor:
        """``E J`` [M] after a step with these rates [M]."""
        chances, gradients = self.outcomes(theta)
        points = theta[:, None] + rates[:, None, None] * gradients
        return (chances * self.objective(points.flatten(0, 1)).view(chances.shape)).sum(1)

    def run(self, rule: Rule, steps: int) -> float:
        """``E J`` after so many steps."""
        theta, weights = self.lab.theta[None], torch.ones(1, dtype=torch.float64)
        for step in range(steps - 1):
            chances, gradients = self.outcomes(theta)
            rates = rule(theta, step)
            theta = (theta[:, None] + rates[:, None, None] * gradients).flatten(0, 1)
            weights = (weights[:, None] * chances).flatten()
        return (weights * self.after(theta, rule(theta, steps - 1))).sum().item()


def constant(rates: Sequence[float]) -> Rule:
    """The same for all policies, a rate for each step."""
    return lambda theta, step: torch.full((len(theta),), float(rates[step]), dtype=torch.float64)


def theorem(horizon: Horizon, eta0: float) -> Rule:
    """Theorem 4's, ``η₀ ‖∇J‖²/E‖ĝ‖²`` with the true moments of each policy."""

    def rule(theta: Tensor, step: int) -> Tensor:
        signal, square = horizon.moments(theta)
        return eta0 * signal / square

    return rule


def measured(horizon: Horizon, most: float = 100.0) -> Rule:
    """The same with ``1/L`` in place of ``η₀``, where ``L`` is the curvature along each policy's own steps: the rate
    ``‖∇J‖² / (−E ĝᵀ∇²J ĝ)``, best for one short step. Where nothing curves down it is ``most``."""

    def rule(theta: Tensor, step: int) -> Tensor:
        signal, _ = horizon.moments(theta)
        curvature = horizon.curvature(theta)
        return torch.where(curvature > 0, signal / curvature.clamp(min=1e-300), most).clamp(max=most)

    return rule


def best_rates(horizon: Horizon, steps: int, start: float) -> list[float]:
    """The schedule of most ``E J`` at its end, among those that do not look at the policy."""
    found = minimize(
        lambda logs: -horizon.run(constant([2.0**log for log in logs]), steps),
        [torch.tensor(start).log2().item()] * steps,
        method="Nelder-Mead",
        options={"xatol": 1e-3, "fatol": 1e-9, "maxiter": 400 * steps},
    )
    return [float(2.0**log) for log in found.x]


def tuned(horizon: Horizon, rule: Callable[[float], Rule], steps: int) -> tuple[float, float]:
    """The best of a family of rules, by its parameter: that, and where it leads.

    Raises:
        ValueError: it lies at an end of what is searched, 1/256 to 256.
    """
    found = minimize_scalar(lambda log: -horizon.run(rule(2.0**log), steps), bounds=(-8, 8), method="bounded")
    if abs(found.x) > 7.95:
        raise ValueError(f"the best parameter is not inside 1/256 to 256: {2.0**found.x:.3g}")
    return float(2.0**found.x), float(-found.fun)
