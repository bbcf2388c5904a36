"""Policies small enough to enumerate: every expectation below is a finite sum, in float64."""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

#: advantages [N, G] of N groups from rewards, squared gradient norms and lengths [N, G]
Advantages = Callable[[Tensor, Tensor, Tensor], Tensor]


class Laboratory:
    """``π(a|q) ∝ exp⟨θ, φ(q, a)⟩`` over K responses to each of P equally likely prompts; parameters are shared.

    Attributes:
        features: ``φ`` [P, K, D].  rewards: in [0, 1], [P, K].  lengths: int64 [P, K].  theta: [D].
        penalties: what a response takes off its term in a group's gradient, ``β v`` [P, K, D]; zero unless set.
    """

    def __init__(self, prompts: int = 2, responses: int = 3, size: int = 3, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        shape = (prompts, responses)
        self.features = torch.randn(*shape, size, generator=generator, dtype=torch.float64)
        self.rewards = torch.rand(shape, generator=generator, dtype=torch.float64)
        self.lengths = torch.randint(1, 9, shape, generator=generator)
        self.theta = torch.randn(size, generator=generator, dtype=torch.float64)
        self.penalties = torch.zeros_like(self.features)

    def token_logs(self, theta: Tensor) -> Tensor:
        """Log-probability of each token of each response, [P, K, T]; here a response is one token."""
        return (self.features @ theta).log_softmax(1)[..., None]

    @property
    def token_gradients(self) -> Tensor:
        """Their gradients [P, K, T, D]."""
        return centred(self.features, self.probabilities)[:, :, None]

    @property
    def probabilities(self) -> Tensor:
        """[P, K]."""
        return self.token_logs(self.theta).sum(-1).exp()

    @property
    def gradients(self) -> Tensor:
        """``∇ log π(a|q)`` [P, K, D]."""
        return self.token_gradients.sum(2)

    @property
    def square_norms(self) -> Tensor:
        return self.gradients.square().sum(-1)

    def objective(self, theta: Tensor) -> Tensor:
        """``J``, the expected reward."""
        return (self.token_logs(theta).sum(-1).exp() * self.rewards).sum(1).mean()

    @property
    def prompt_gradients(self) -> Tensor:
        """``∇J`` of each prompt alone, [P, D]."""
        return ((self.probabilities * self.rewards)[..., None] * self.gradients).sum(1)

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
        """``g_q = (1/G) Σ_i [A_i ∇ log π(o_i|q) − β v_i]`` of each group, [N, D]."""
        at = (prompts[:, None], responses)
        coefficients = advantages(self.rewards[at], self.square_norms[at], self.lengths[at])
        return (coefficients[..., None] * self.gradients[at] - self.penalties[at]).mean(1)

    def prompts_of(self, rewards: Tensor) -> Tensor:
        """Of groups of those rewards [N, G]: no two prompts share any."""
        return (rewards[:, :1, None] == self.rewards).any(2).int().argmax(1)

    def constant(self, baselines: Tensor) -> Advantages:
        """``R − b(q)`` with the baseline of each prompt [P]."""
        return lambda rewards, *_: rewards - baselines[self.prompts_of(rewards)][:, None]

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


class Sequences(Laboratory):
    """T tokens a response, ``π(a|q) = Π_t π(a_t|q, a_<t)``, each log-linear: K is the alphabet's V to the power of T.

    Attributes:
        prefixes: features of token t after every prefix, [P, V^t, D] for t = 1 … T; the last are ``features``.
    """

    def __init__(self, prompts: int = 2, alphabet: int = 2, size: int = 3, seed: int = 0, length: int = 2):
        super().__init__(prompts, alphabet**length, size, seed)
        generator = torch.Generator().manual_seed(seed + 1)
        shapes = [(prompts, alphabet**t, size) for t in range(1, length)]
        self.prefixes = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        self.prefixes.append(self.features)
        self.alphabet = alphabet

    def token_logs(self, theta: Tensor) -> Tensor:
        return torch.stack([self.of_responses(self.next_logs(theta, x).flatten(1)) for x in self.prefixes], 2)

    @property
    def token_gradients(self) -> Tensor:
        gradients = []
        for features in self.prefixes:
            chances = self.next_logs(self.theta, features).exp()
            branches = features.view(*chances.shape, -1)
            gradients.append(self.of_responses(centred(branches, chances).flatten(1, 2)))
        return torch.stack(gradients, 2)

    def next_logs(self, theta: Tensor, features: Tensor) -> Tensor:
        """Next-token log-probabilities after every prefix, [P, V^(t-1), V]."""
        return (features @ theta).view(len(features), -1, self.alphabet).log_softmax(2)

    @property
    def token_energies(self) -> Tensor:
        """Squared norm of the gradient of the token's log-probability with respect to the logits, [P, K, T]."""
        energies = []
        for features in self.prefixes:
            chances = self.next_logs(self.theta, features).exp()
            logit_gradients = torch.eye(self.alphabet, dtype=torch.float64) - chances[..., None, :]
            energies.append(self.of_responses(logit_gradients.square().sum(3).flatten(1)))
        return torch.stack(energies, 2)

    def of_responses(self, values: Tensor) -> Tensor:
        """Values of prefixes [P, V^t, …] for each response, [P, K, …]."""
        return values.repeat_interleave(self.rewards.shape[1] // values.shape[1], 1)


class Endings(Sequences):
    """Responses end with their first token 0, or after T. What comes after is drawn blindly and changes nothing.

    A response is thus listed once for every continuation that it does not have; ``lengths`` [P, K] are up to the end.
    """

    def __init__(self, prompts: int = 2, alphabet: int = 2, size: int = 3, seed: int = 0, length: int = 3):
        super().__init__(prompts, alphabet, size, seed, length)
        for t in range(1, length):
            for prefix, tokens in enumerate(itertools.product(range(alphabet), repeat=t + 1)):
                if 0 in tokens[:t]:
                    self.prefixes[t][:, prefix] = 0.0
        for response, tokens in enumerate(itertools.product(range(alphabet), repeat=length)):
            self.lengths[:, response] = n = tokens.index(0) + 1 if 0 in tokens else length
            listed_first = response - response % alphabet ** (length - n)
            self.rewards[:, response] = self.rewards[:, listed_first]


class Policies:
    """The laboratory's policy with many parameters θ [M, D] at once."""

    def __init__(self, lab: Laboratory):
        self.lab = lab

    def policies(self, theta: Tensor) -> Tensor:
        """``π(a|q)`` [M, P, K]."""
        return torch.einsum("pkd,md->mpk", self.lab.features, theta).softmax(2)

    def objective(self, theta: Tensor) -> Tensor:
        """``J`` [M]."""
        return (self.policies(theta) * self.lab.rewards).sum(2).mean(1)


def centred(features: Tensor, chances: Tensor) -> Tensor:
    """``φ − E[φ]`` over the last but one axis, ``φ`` [..., K, D] with ``chances`` [..., K]."""
    return features - (chances[..., None] * features).sum(-2, keepdim=True)
