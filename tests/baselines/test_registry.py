"""Every baseline against a plain loop over the responses of a step, or over their tokens."""

import statistics

import pytest
import torch
from baseline_steps import G, N, as_lists, baseline, draw
from conftest import ROOT

from oblr.baselines.base import live_groups, live_though_equal
from oblr.baselines.gradient_weighted import PRIORS


def weighted(rewards, weights, members):
    return sum(weights[j] * rewards[j] for j in members) / sum(weights[j] for j in members)


def others(i):
    return [j for j in range(G) if j != i]


def with_others(step, q, i, count):
    """The paper's sums, and ``count`` means over the step's other groups."""
    rest = [(w, r) for k in range(N) if k != q for w, r in zip(step.weights[k], step.rewards[k], strict=True)]
    own = [(step.weights[q][j], step.rewards[q][j]) for j in others(i)]
    share = count / len(rest)
    sums = [sum(w * r for w, r in of) for of in (own, rest)], [sum(w for w, _ in of) for of in (own, rest)]
    return (sums[0][0] + share * sums[0][1]) / (sums[1][0] + share * sums[1][1])


def shrunk(step, q, i):
    rest = [row for k, row in enumerate(step.rewards) if k != q]
    within = statistics.mean(statistics.variance(row) for row in rest)
    between = statistics.variance(statistics.mean(row) for row in rest)
    signal, noise = max(between - within / G, 0), within / (G - 1)
    share = noise / (noise + signal)
    elsewhere = statistics.mean(r for row in rest for r in row)
    return (1 - share) * statistics.mean(step.rewards[q][j] for j in others(i)) + share * elsewhere


def token_mean(step, q, t, members):
    """Rewards weighted by the energy up to token t."""
    long_enough = [j for j in members if step.lengths[q][j] > t] or members
    weights = {j: sum(step.energy[q][j][: t + 1]) for j in long_enough}
    if sum(weights.values()) == 0:
        return statistics.mean(step.rewards[q][j] for j in long_enough)
    return weighted(step.rewards[q], weights, long_enough)


#: name and settings → b_it of token t of response i to prompt q
LOOPS = {
    ("none",): lambda s, q, i, t: 0.0,
    ("rloo",): lambda s, q, i, t: statistics.mean(s.rewards[q][j] for j in others(i)),
    ("group_mean",): lambda s, q, i, t: statistics.mean(s.rewards[q]),
    ("batch_mean",): lambda s, q, i, t: (sum(map(sum, s.rewards)) - s.rewards[q][i]) / (N * G - 1),
    ("opo",): lambda s, q, i, t: weighted(s.rewards[q], s.lengths[q], others(i)),
    ("opo", ("pooled", True)): lambda s, q, i, t: weighted(s.rewards[q], s.lengths[q], range(G)),
    ("gradient_weighted",): lambda s, q, i, t: weighted(s.rewards[q], s.weights[q], others(i)),
    ("gradient_weighted", ("form", "pooled")): lambda s, q, i, t: weighted(s.rewards[q], s.weights[q], range(G)),
    ("gradient_weighted", ("form", "cross_fitted")): lambda s, q, i, t: weighted(
        s.rewards[q], s.weights[q], [j for j in range(G) if (j - i) % 2]
    ),
    ("gradient_weighted", ("prior", "step")): lambda s, q, i, t: with_others(s, q, i, 1),
    ("gradient_weighted", ("prior", "step"), ("pseudo_counts", (9,))): lambda s, q, i, t: with_others(s, q, i, 9),
    ("with_prior",): lambda s, q, i, t: weighted(s.rewards[q], s.weights[q], others(i)),  # of the first step
    ("gradient_weighted", ("prior", "history")): lambda s, q, i, t: weighted(  # of the first visit
        s.rewards[q], s.weights[q], others(i)
    ),
    ("shrinkage",): lambda s, q, i, t: shrunk(s, q, i),
    ("shrinkage", ("weighted", True)): lambda s, q, i, t: with_others(s, q, i, 1),
    ("remax",): lambda s, q, i, t: s.greedy[q],
    ("otb",): lambda s, q, i, t: token_mean(s, q, t, others(i)),
    ("otb", ("pooled", True)): lambda s, q, i, t: token_mean(s, q, t, list(range(G))),
    ("adaptive",): lambda s, q, i, t: weighted(s.rewards[q], s.weights[q], others(i)),  # of the first step
    ("value",): lambda s, q, i, t: 0.0,  # of the first step
    ("history",): lambda s, q, i, t: weighted(s.rewards[q], s.weights[q], others(i)),  # of the first visit
}


@pytest.mark.parametrize("key", LOOPS, ids=lambda key: "-".join(map(str, key)))
def test_against_a_plain_loop(key):
    groups = draw()
    chosen, step = baseline(key[0], **dict(key[1:])), as_lists(groups)
    advantages = chosen(groups)
    assert advantages.dtype == torch.float32
    assert advantages.shape == (groups.tokens.logs if chosen.per_token else groups.rewards).shape
    places = [(q, i, t) for q in range(N) for i in range(G) for t in range(step.lengths[q][i])]
    expected = [step.rewards[q][i] - LOOPS[key](step, q, i, t) for q, i, t in places]
    found = advantages.tolist() if chosen.per_token else [advantages[q, i].item() for q, i, _ in places]
    assert found == pytest.approx(expected, abs=1e-5)


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


every_baseline = pytest.mark.parametrize("key", [*LOOPS, ("group_mean_std",)], ids=lambda key: "-".join(map(str, key)))


def largest(groups, advantages):
    """Of each group, in absolute value."""
    sequences = groups.tokens.sequences if advantages.dim() == 1 else torch.arange(N * G)
    return torch.zeros(N).scatter_reduce(0, sequences // G, advantages.flatten().abs(), "amax")


@every_baseline
def test_a_group_that_is_not_live_has_no_advantages_and_every_other_one_has(key):
    groups, chosen = draw(), baseline(key[0], **dict(key[1:]))
    earlier = draw(seed=1)
    chosen.study(earlier)
    chosen.learn(earlier)
    for q, reward in ((2, 1.0), (4, 0.0)):
        groups.rewards[q], groups.greedy_rewards[q] = reward, reward
    advantages, live = largest(groups, chosen(groups)), chosen.live(groups)
    assert (advantages[~live] < 1e-6).all()
    assert (advantages[live] > 1e-3).all()
    assert live_groups(draw().rewards).all()


@every_baseline
def test_a_first_step_without_any_reward_has_no_advantages(key):
    groups, chosen = draw(), baseline(key[0], **dict(key[1:]))
    groups.rewards[:], groups.greedy_rewards[:] = 0.0, 0.0
    assert (chosen(groups).abs() < 1e-6).all()


@pytest.mark.parametrize("name", ["otb", "rloo", "remax"])
def test_which_groups_are_live(name):
    """Baselines of the group need rewards that differ; ReMax, one that is not the greedy one's."""
    groups = draw()
    groups.rewards[1], groups.greedy_rewards[1] = 1.0, 1.0
    groups.rewards[2], groups.greedy_rewards[2] = 1.0, 0.0
    expected = [True, False, name == "remax", True, True, True]
    assert baseline(name).live(groups).tolist() == expected


def test_who_takes_groups_of_equal_rewards():
    """A plan reckons with all groups then, and none may be replaced."""
    taking = {name for name, *_ in LOOPS if live_though_equal(baseline(name)).all()}
    assert taking == {"adaptive", "batch_mean", "history", "shrinkage", "value", "with_prior"}
    sometimes = {name for name, *_ in LOOPS if live_though_equal(baseline(name)).any()}
    assert sometimes == taking | {"none", "remax"}
    for prior in PRIORS:
        assert live_though_equal(baseline("gradient_weighted", prior=prior)).all()
