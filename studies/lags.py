"""Learning from old rollouts: which correction and which bound pays, at equal samples and at equal seconds?

    python studies/lags.py [--quick]

Policies of responses of six tokens (``tests/helpers/laboratory.py``) learn from 8 groups of 4 a step, sampled from the
policy ``lag`` steps before; their expected reward is known exactly. Two tasks: rewards anywhere in [0, 1], and one
response in ten paid 1. Each way of correcting has its rate tuned at each lag, on seeds that are not counted, in steps
of √2 and inside the grid; then forty seeds.

- **Equal samples**: expected reward, mean of the steps from 250 to 300, in percent of the most that can be had.
- **Equal seconds**: a step whose rollouts are ahead takes 0.7 of one that waits for them, as ``benchmarks/ahead.py``
  foretells of Qwen3-8B; so lags have 429 steps, of which the last 71 count.

``max_noise=X`` leaves out batches whose ``Σρ²n/Σρn`` is above X, as ``policy.max_noise`` does: the policy stands still
then, and the next batches are younger. *Shortened*: their steps are, as by ``policy.beyond=shorten``. It says what such
laboratories say: 64 responses, gradients known exactly.
``--quick``: one task, two ways, few steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import neighbours  # noqa: F401
import torch
from figures import Figure, asked_to_be_quick, write
from laboratory import Sequences, centred
from results import over_seeds
from torch import Tensor

from oblr.baselines.base import Baseline, Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.types import ResponseTokens
from oblr.losses.band import BandLoss
from oblr.losses.base import Surrogate
from oblr.losses.ess import ESSLoss
from oblr.losses.policy_gradient import PolicyGradientLoss

PROMPTS, LENGTH, SIZE, N, G = 4, 6, 12, 8, 4
LAGS, STEPS, FASTER = (0, 1, 4, 16), 300, 0.7
TUNED, COUNTED = range(100, 105), range(40)
#: η = 2^(k/2).
GRID = range(-6, 9)
TASKS = ("graded", "rare")


@dataclass(frozen=True)
class Way:
    """What is made of old rollouts.

    Attributes:
        most: what ``Σρ²n/Σρn`` of a batch may be; None: anything.
        shorten: whether the step of a batch beyond it is shorter, where else there is none.
        root: whether the rate falls as the root of ESS.
    """

    loss: Surrogate
    baseline: Baseline
    most: float | None = None
    shorten: bool = False
    root: bool = False


EXACT, RLOO = PolicyGradientLoss(), RLOOBaseline()
WAYS = {
    "uncorrected": Way(PolicyGradientLoss("none"), RLOO),
    "ratios": Way(EXACT, RLOO),
    "ratios, weights ρ²n of the others": Way(EXACT, GradientWeightedBaseline()),
    "ratios ≤ 2": Way(PolicyGradientLoss("sequence", truncate=2.0), RLOO),
    "ratios in [0.5, 2], else left out": Way(BandLoss("sequence", 0.5, 2.0), RLOO),
    "ratios ≤ ESS of the group": Way(ESSLoss(), RLOO),
    "ratios, rate by √ESS": Way(EXACT, RLOO, root=True),
    "ratios, max_noise=1.5": Way(EXACT, RLOO, most=1.5),
    "ratios, max_noise=4": Way(EXACT, RLOO, most=4.0),
    "ratios, max_noise=1.5, shortened": Way(EXACT, RLOO, most=1.5, shorten=True),
    "ratios, max_noise=4, shortened": Way(EXACT, RLOO, most=4.0, shorten=True),
}
#: Those that differ where nothing is old.
ONCE = ("ratios", "ratios, weights ρ²n of the others")


class Policies:
    """A laboratory's policy for each of M runs, with parameters θ [M, D] of its own.

    Args:
        seeds: the laboratory of each run.
        task: one of ``TASKS``.
    """

    def __init__(self, seeds: Sequence[int], task: str):
        made = {seed: Sequences(PROMPTS, 2, SIZE, seed, LENGTH) for seed in dict.fromkeys(seeds)}
        labs = [made[seed] for seed in seeds]
        self.prefixes = [torch.stack(of_labs) for of_labs in zip(*(lab.prefixes for lab in labs), strict=True)]
        rewards = torch.stack([lab.rewards for lab in labs])
        self.rewards = (rewards > 0.9).double() if task == "rare" else rewards
        self.theta = torch.stack([lab.theta for lab in labs])

    def token_logs(self, theta: Tensor) -> Tensor:
        """[M, P, K, T]."""
        return torch.stack([self.of_responses(self.next_logs(theta, x).flatten(2)) for x in self.prefixes], 3)

    def gradients(self, theta: Tensor) -> Tensor:
        """``∇ log π(a|q)`` [M, P, K, D]."""
        total = torch.zeros(*self.rewards.shape, theta.shape[1], dtype=torch.float64)
        for x in self.prefixes:
            chances = self.next_logs(theta, x).exp()
            total += self.of_responses(centred(x.view(*chances.shape, -1), chances).flatten(2, 3))
        return total

    def next_logs(self, theta: Tensor, features: Tensor) -> Tensor:
        scores = torch.einsum("mpxd,md->mpx", features, theta)
        return scores.view(*scores.shape[:2], -1, 2).log_softmax(3)

    def of_responses(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self.rewards.shape[2] // values.shape[2], 2)


def learn(way: Way, lag: int, rates: Sequence[float], seeds: Sequence[int], task: str, steps: int) -> Tensor:
    """Expected reward in percent of the most, after each step of every run, float64 [steps, rates, seeds]."""
    policies = Policies([seed for _ in rates for seed in seeds], task)
    rate = torch.tensor(rates, dtype=torch.float64).repeat_interleave(len(seeds))
    theta, runs = policies.theta, torch.arange(len(rates) * len(seeds))
    most, kept, found = policies.rewards.amax(2).mean(1), [], []
    at, logs = runs[:, None, None], policies.token_logs(theta)
    for step in range(steps):
        kept = [*kept, logs][-(lag + 1) :]
        older = kept[0]
        prompts, responses = sampled(older, seeds, len(rates), step)
        place = at, prompts[..., None], responses
        own = policies.gradients(theta)[place]
        norms, rewards = own.square().sum(3), policies.rewards[place]
        ratios_of_tokens = (logs - older)[place]
        tokens = ResponseTokens(
            logs=ratios_of_tokens.flatten(),
            energy=torch.zeros(ratios_of_tokens.numel(), dtype=torch.float64),
            sequences=torch.arange(norms.numel()).repeat_interleave(LENGTH),
            behaviour=older.sum(3)[place].flatten(),
            lengths=torch.full((norms.numel(),), LENGTH),
            group_size=G,
        )
        weights = way.loss.reward_weights(tokens, norms.flatten()).view(-1, G)
        of_groups = rewards.view(-1, G)
        advantages = way.baseline(Groups(of_groups, weights, torch.full_like(of_groups, LENGTH), of_groups))
        coefficients = way.loss.coefficients(tokens, advantages.flatten(), per_token=False).view_as(norms)
        gradient = (coefficients[..., None] * own).sum(2).mean(1)
        ratios, scale = ratios_of_tokens.sum(3).exp(), rate.clone()
        if way.most is not None:
            growth = (ratios.square() * norms).sum((1, 2)) / (ratios * norms).sum((1, 2))
            scale *= (way.most / growth).clamp(max=1) if way.shorten else growth <= way.most
        if way.root:
            scale *= (ratios.sum((1, 2)).square() / (N * G * ratios.square().sum((1, 2)))).sqrt()
        theta = theta + scale[:, None] * gradient
        logs = policies.token_logs(theta)
        found.append(100 * (logs.sum(3).exp() * policies.rewards).sum(2).mean(1) / most)
    return torch.stack(found).view(steps, len(rates), len(seeds))


def sampled(logs: Tensor, seeds: Sequence[int], repeats: int, step: int) -> tuple[Tensor, Tensor]:
    """Prompts [M, N] and responses [M, N, G] of a step; runs of a seed draw the same random numbers."""
    prompts, places = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        prompts.append(torch.randint(PROMPTS, (N,), generator=generator))
        places.append(torch.rand(N, G, generator=generator, dtype=torch.float64))
    prompt, place = torch.stack(prompts).repeat(repeats, 1), torch.stack(places).repeat(repeats, 1, 1)
    below = logs.sum(3).exp().cumsum(2)[torch.arange(len(prompt))[:, None], prompt]
    return prompt, torch.searchsorted(below, place * below[..., -1:]).clamp(max=below.shape[-1] - 1)


def late(rewards: Tensor, steps: int) -> Tensor:
    """The mean of the last sixth of ``steps``."""
    return rewards[steps - steps // 6 : steps].mean(0)


class Study:
    """Runs of the ways, each with its tuned rate."""

    def __init__(self, tasks: Sequence[str], ways: Sequence[str], lags: Sequence[int], steps: int):
        self.tasks, self.ways, self.lags, self.steps = tasks, ways, lags, steps
        self.longest = round(steps / FASTER)
        self.tried = cache(self._tried)

    def _tried(self, task: str, name: str, lag: int, exponents: range) -> Tensor:
        """Of the tuning's seeds, expected reward after each step with each rate, [steps, rates]."""
        rates = [2 ** (k / 2) for k in exponents]
        return learn(WAYS[name], lag, rates, TUNED, task, self.longest).mean(2).nan_to_num(0)

    def tuned(self, task: str, name: str, lag: int, steps: int) -> float:
        """The rate of the best late reward, inside the grid, which grows where it would be an end of it."""
        grid = GRID
        while True:
            best = int(late(self.tried(task, name, lag, grid), steps).argmax())
            if 0 < best < len(grid) - 1:
                return 2 ** (grid[best] / 2)
            grid = range(grid[0] - 4, grid[-1] + 1) if best == 0 else range(grid[0], grid[-1] + 5)

    def counted(self, task: str, name: str, lag: int, steps: int) -> tuple[float, list[float]]:
        """The tuned rate, and the late reward of each seed that counts."""
        rate = self.tuned(task, name, lag, steps)
        return rate, late(learn(WAYS[name], lag, [rate], COUNTED, task, steps), steps)[0].tolist()

    def figures(self) -> Iterator[Figure]:
        for task in self.tasks:
            fresh = self.counted(task, "ratios", 0, self.steps)[1]
            for what, steps in (("equal samples", self.steps), ("equal seconds", self.longest)):
                for lag in self.lags if steps == self.steps else self.lags[1:]:
                    for name in self.ways if lag else [name for name in ONCE if name in self.ways]:
                        rate, own = self.counted(task, name, lag, steps)
                        title = f"{task}, lag {lag}, {name}, {what}"
                        yield Figure(f"{title}: rate", rate, "")
                        yield over_seeds(f"{title}: late reward", "%", own)
                        gap = [a - b for a, b in zip(own, fresh, strict=True)]
                        yield over_seeds(f"{title}: over lag 0 with ratios", "points", gap)


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    torch.set_num_threads(1)
    study = Study(TASKS[:1], ("uncorrected", "ratios"), (0, 1), 12) if quick else Study(TASKS, [*WAYS], LAGS, STEPS)
    write("lags-quick" if quick else "lags", list(study.figures()))


if __name__ == "__main__":
    main()
