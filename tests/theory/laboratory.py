"""A softmax policy small enough to enumerate: every expectation below is a finite sum, in float64."""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

#: advantages [N, G] of N groups from rewards, squared score norms and lengths [N, G]
Advantages = Callable[[Tensor, Tensor, Tensor], Tensor]


class Laboratory:
    """``π(a|q) ∝ exp⟨θ, φ(q, a)⟩`` over K responses to each of P equally likely prompts; parameters are shared.

    Attributes:
        features: ``φ`` [P, K, D].  rewards: in [0, 1], [P, K].  lengths: int64 [P, K].  theta: [D].
    """

    def __init__(self, prompts: int = 2, responses: int = 3, size: int = 3, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        shape = (prompts, responses)
        self.features = torch.randn(*shape, size, generator=generator, dtype=torch.float64)
        self.rewards = torch.rand(shape, generator=generator, dtype=torch.float64)
        self.lengths = torch.randint(1, 9, shape, generator=generator)
        self.theta = torch.randn(size, generator=generator, dtype=torch.float64)

    @property
    def probabilities(self) -> Tensor:
        """[P, K]."""
        return (self.features @ self.theta).softmax(1)

    @property
    def scores(self) -> Tensor:
        """``∇ log π(a|q)`` [P, K, D]."""
        return self.features - (self.probabilities[..., None] * self.features).sum(1, keepdim=True)

    @property
    def square_norms(self) -> Tensor:
        return self.scores.square().sum(-1)

    def objective(self, theta: Tensor) -> Tensor:
        """``J``, the expected reward."""
        return ((self.features @ theta).softmax(1) * self.rewards).sum(1).mean()

    @property
    def prompt_gradients(self) -> Tensor:
        """``∇J`` of each prompt alone, [P, D]."""
        return ((self.probabilities * self.rewards)[..., None] * self.scores).sum(1)

    @property
    def gradient(self) -> Tensor:
        return self.prompt_gradients.mean(0)

    @property
    def optimal_baseline(self) -> Tensor:
        """``E[nR]/E[n]`` of each prompt, [P]."""
        weights = self.probabilities * self.square_norms
        return (weights * self.rewards).sum(1) / weights.sum(1)

    def steps(self, n_groups: int, group_size: int) -> Iterator[tuple[float, Tensor, Tensor]]:
        """Everything a step can sample: its probability, prompts [N], and responses [N, G]."""
        prompts, responses = self.rewards.shape
        for q in itertools.product(range(prompts), repeat=n_groups):
            for actions in itertools.product(range(responses), repeat=n_groups * group_size):
                chosen, a = torch.tensor(q), torch.tensor(actions).view(n_groups, group_size)
                chance = self.probabilities[chosen[:, None], a].prod() / prompts**n_groups
                yield chance.item(), chosen, a

    def group_gradients(self, prompts: Tensor, responses: Tensor, advantages: Advantages) -> Tensor:
        """``g_q = (1/G) Σ_i A_i ∇ log π(o_i|q)`` of each group, [N, D]."""
        at = (prompts[:, None], responses)
        coefficients = advantages(self.rewards[at], self.square_norms[at], self.lengths[at])
        return (coefficients[..., None] * self.scores[at]).mean(1)

    def moments(self, advantages: Advantages, n_groups: int = 1, group_size: int = 3) -> tuple[Tensor, float]:
        """Exact mean of the step gradient [D] and ``tr H``, the trace of the covariance of its first group's."""
        mean, square = torch.zeros_like(self.theta), 0.0
        for chance, prompts, responses in self.steps(n_groups, group_size):
            groups = self.group_gradients(prompts, responses, advantages)
            mean += chance * groups.mean(0)
            square += chance * groups[0].square().sum().item()
        return mean, square - mean.square().sum().item()

    def sample(self, n_groups: int, group_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Prompts [N] and responses [N, G] of one step."""
        prompts = torch.randint(len(self.rewards), (n_groups,), generator=generator)
        return prompts, torch.multinomial(self.probabilities[prompts], group_size, True, generator=generator)
