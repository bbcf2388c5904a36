"""Every baseline against a plain loop over the responses of a step."""

import statistics

import pytest
import torch
from conftest import ROOT
from hydra.utils import instantiate
from omegaconf import OmegaConf

from oblr.baselines.base import Groups, live_groups

N, G = 6, 8


def draw(seed=0):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(N, G, generator=generator).round()
    weights = torch.rand(N, G, generator=generator, dtype=torch.float64).pow(4) * 1e4
    return Groups(rewards, weights, torch.randint(1, 60, (N, G), generator=generator), rewards)


def baseline(name, **settings):
    return instantiate(OmegaConf.load(ROOT / "conf" / "baseline" / f"{name}.yaml"), **settings)


def weighted(rewards, weights, members):
    return sum(weights[j] * rewards[j] for j in members) / sum(weights[j] for j in members)


def others(i):
    return [j for j in range(G) if j != i]


def shrunk(step, q, i):
    rest = [row for k, row in enumerate(step) if k != q]
    within = statistics.mean(statistics.variance(row) for row in rest)
    between = statistics.variance(statistics.mean(row) for row in rest)
    signal, noise = max(between - within / G, 0), within / (G - 1)
    share = noise / (noise + signal)
    mean = statistics.mean(step[q][j] for j in others(i))
    return (1 - share) * mean + share * statistics.mean(r for row in rest for r in row)


#: name and settings → b_i of response i to prompt q, from rewards, weights and lengths of the step as nested lists
LOOPS = {
    ("none",): lambda R, w, n, q, i: 0.0,
    ("rloo",): lambda R, w, n, q, i: statistics.mean(R[q][j] for j in others(i)),
    ("group_mean",): lambda R, w, n, q, i: statistics.mean(R[q]),
    ("batch_mean",): lambda R, w, n, q, i: (sum(map(sum, R)) - R[q][i]) / (N * G - 1),
    ("opo",): lambda R, w, n, q, i: weighted(R[q], n[q], others(i)),
    ("opo", ("pooled", True)): lambda R, w, n, q, i: weighted(R[q], n[q], range(G)),
    ("gradient_weighted",): lambda R, w, n, q, i: weighted(R[q], w[q], others(i)),
    ("gradient_weighted", ("form", "pooled")): lambda R, w, n, q, i: weighted(R[q], w[q], range(G)),
    ("gradient_weighted", ("form", "cross_fitted")): lambda R, w, n, q, i: weighted(
        R[q], w[q], [j for j in range(G) if (j - i) % 2]
    ),
    ("shrinkage",): lambda R, w, n, q, i: shrunk(R, q, i),
    ("adaptive",): lambda R, w, n, q, i: weighted(R[q], w[q], others(i)),  # of the first step
}


@pytest.mark.parametrize("key", LOOPS, ids=lambda key: "-".join(map(str, key)))
def test_against_a_plain_loop(key):
    groups = draw()
    advantages = baseline(key[0], **dict(key[1:]))(groups)
    assert advantages.dtype == torch.float32
    lists = (groups.rewards.tolist(), groups.weights.tolist(), groups.lengths.tolist())
    for q in range(N):
        for i in range(G):
            expected = lists[0][q][i] - LOOPS[key](*lists, q, i)
            assert advantages[q, i].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("name", "settings"), [("group_mean_std", {}), ("batch_mean", {"normalise": True})])
def test_normalised_advantages(name, settings):
    groups = draw()
    advantages = baseline(name, **settings)(groups).tolist()
    rows = groups.rewards.tolist()
    for q, row in enumerate(rows):
        pool = row if name == "group_mean_std" else [r for other in rows for r in other]
        mean, std = statistics.mean(pool), statistics.pstdev(pool)
        assert advantages[q] == pytest.approx([(r - mean) / (std + 1e-6) for r in row], abs=1e-4)


def test_every_baseline_has_a_test():
    names = {path.stem for path in (ROOT / "conf" / "baseline").glob("*.yaml")}
    assert names == {key[0] for key in LOOPS} | {"group_mean_std"}


@pytest.mark.parametrize("key", [*LOOPS, ("group_mean_std",)], ids=lambda key: "-".join(map(str, key)))
def test_a_group_that_is_not_live_has_no_advantages(key):
    groups = draw()
    groups.rewards[2], groups.rewards[4] = 1.0, 0.0
    chosen = baseline(key[0], **dict(key[1:]))
    advantages, live = chosen(groups), chosen.live(groups.rewards)
    assert (advantages[~live].abs() < 1e-6).all()
    assert (advantages[live].abs() > 1e-3).any(1).all()
    groups.rewards[:] = 0.0
    assert (chosen(groups).abs() < 1e-6).all()
    assert live_groups(draw().rewards).all()


def test_adaptive_learns_what_a_reward_says_of_the_norm():
    """Norms ten times as large where the reward is 0, and noisy: smoothing beats the norms themselves."""
    generator = torch.Generator().manual_seed(0)
    adaptive, plain, moments = baseline("adaptive"), baseline("gradient_weighted"), torch.zeros(2)
    for step in range(60):
        rewards = (torch.rand(16, 8, generator=generator) < torch.rand(16, 1, generator=generator)).float()
        noise = torch.randn(16, 8, generator=generator, dtype=torch.float64).exp()
        groups = Groups(rewards, (10 - 9 * rewards) * noise, torch.ones(16, 8), rewards)
        if step >= 10:
            for k, chosen in enumerate((adaptive, plain)):
                moments[k] += (chosen(groups).square() * groups.weights).mean()
        adaptive.learn(groups)
    assert moments[0] < 0.95 * moments[1]
    assert adaptive.expected(torch.zeros(1)).item() > 3 * adaptive.expected(torch.ones(1)).item()

    again = baseline("adaptive")
    again.load_state_dict(adaptive.state_dict())
    assert torch.equal(again(groups), adaptive(groups))
