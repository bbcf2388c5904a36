"""Steps to try baselines on: as the tensors they are given, and as nested lists for a plain loop."""

from dataclasses import dataclass
from functools import cache

import torch
from conftest import ROOT
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from oblr.baselines.base import Groups
from oblr.batch.types import ResponseTokens

N, G, D = 6, 8, 3


@cache
def chosen(name):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(f"baseline/{name}").baseline


def baseline(name, **settings):
    return instantiate(chosen(name), **settings)


def make(rewards, lengths, weights=None, greedy_rewards=None, energy=None, hidden=None):
    """Groups of those rewards and lengths [N, G]; energy [n] and hidden [n, D] are those of their tokens."""
    responses = lengths.flatten()
    n = int(responses.sum())
    energy = torch.ones(n).double() if energy is None else energy
    sequences = torch.arange(len(responses)).repeat_interleave(responses)
    tokens = ResponseTokens(
        logs=torch.zeros(n).double(),
        energy=energy,
        sequences=sequences,
        behaviour=torch.zeros(len(responses)).double(),
        lengths=responses,
        group_size=rewards.shape[1],
        hidden=hidden,
    )
    weights = torch.ones(rewards.shape).double() if weights is None else weights
    return Groups(rewards, weights, lengths, rewards, greedy_rewards, tokens, torch.arange(len(rewards)), weights)


def draw(seed=0):
    """A step with what is special to baselines of tokens:

    - group 0: a response is by far the longest;
    - group 1: all have one token;
    - group 2: all energies are zero, and a response is the longest;
    - group 3: the energies of all but one response are zero;
    - group 4: the energies of the first two tokens are zero.
    """
    generator = torch.Generator().manual_seed(seed)
    rates = torch.linspace(0.1, 0.9, N)[:, None]  # of 1s, so that groups differ by more than their noise
    rewards = (torch.rand(N, G, generator=generator) < rates[torch.randperm(N, generator=generator)]).float()
    weights = torch.rand(N, G, generator=generator, dtype=torch.float64).pow(4) * 1e4
    lengths = torch.randint(1, 9, (N, G), generator=generator)
    lengths[0, 3], lengths[1], lengths[2, 5] = 14, 1, 10
    energy = 2 * torch.rand(N, G, 14, generator=generator, dtype=torch.float64)
    energy[2], energy[3, 1:], energy[4, :, :2] = 0, 0, 0
    hidden = torch.randn(N, G, 14, D, generator=generator) + rewards[..., None, None]
    present = torch.arange(14) < lengths[..., None]
    greedy_rewards = torch.rand(N, generator=generator).round()
    return make(rewards, lengths, weights, greedy_rewards, energy[present], hidden[present])


def part(groups, rows):
    """Some of the groups, by index and in that order, as a micro-batch has them."""
    tokens, size = groups.tokens, groups.rewards.shape[1]
    wanted = torch.cat([(tokens.sequences // size == q).nonzero()[:, 0] for q in rows])
    some = make(groups.rewards[rows], groups.lengths[rows], energy=tokens.energy[wanted], hidden=tokens.hidden[wanted])
    return groups.of(torch.tensor(rows), some.tokens)


@dataclass
class Step:
    """Nested lists: rewards, weights and lengths [q][i], greedy rewards [q], energies [q][i][t] of ragged length."""

    rewards: list[list[float]]
    weights: list[list[float]]
    lengths: list[list[int]]
    greedy: list[float]
    energy: list[list[list[float]]]


def as_lists(groups):
    lengths, energies = groups.lengths.tolist(), iter(groups.tokens.energy.tolist())
    return Step(
        groups.rewards.tolist(),
        groups.reward_weights.tolist(),
        lengths,
        groups.greedy_rewards.tolist(),
        [[[next(energies) for _ in range(length)] for length in row] for row in lengths],
    )
