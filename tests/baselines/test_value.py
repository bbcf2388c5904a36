"""The value: what it learns against a closed form, and what it makes of it against a plain loop."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from baseline_steps import D, G, N, baseline, draw, make, part

from oblr.errors import SettingError


def taught(steps, **settings):
    """A value that has seen those steps, each as one micro-batch."""
    chosen = baseline("value", **settings)
    for groups in steps:
        chosen.study(groups)
        chosen.learn(groups)
    return chosen


def rows(groups):
    """Hidden states [n, D] of all tokens and the reward [n] of the response of each."""
    lengths = groups.lengths.numpy().ravel()
    return groups.tokens.hidden.numpy().astype(np.float64), np.repeat(groups.rewards.numpy().ravel(), lengths)


def ridge_regression(steps, decay, ridge):
    """``(w, c)`` from centred rows: the constant is free of the penalty because it is not in the equations."""
    hidden, rewards = (np.concatenate(columns) for columns in zip(*map(rows, steps), strict=True))
    ages = [np.full(len(rows(groups)[1]), len(steps) - 1 - k) for k, groups in enumerate(steps)]
    weights = decay ** np.concatenate(ages)
    mean, mean_reward = (np.average(x, axis=0, weights=weights) for x in (hidden, rewards))
    centred = hidden - mean
    penalty = ridge * np.mean(weights @ hidden**2)
    gram = centred.T @ (weights[:, None] * centred) + penalty * np.eye(hidden.shape[1])
    w = np.linalg.solve(gram, centred.T @ (weights * (rewards - mean_reward)))
    return [*w, mean_reward - mean @ w]


def generalised_advantages(rewards, values, trace):
    """Token by token of each response, ``Σ_{s≥t} λ^(s−t) δ_s``, from rewards [S] and values [S][t]."""
    advantages = []
    for reward, own in zip(rewards, values, strict=True):
        following = [*own[1:], reward]
        deltas = [after - before for before, after in zip(own, following, strict=True)]
        for t in range(len(own)):
            advantages.append(sum(trace ** (s - t) * deltas[s] for s in range(t, len(own))))
    return advantages


def test_before_any_step_the_value_is_zero():
    groups = draw()
    chosen = baseline("value")
    chosen.learn(groups)  # nothing has been studied
    assert torch.equal(chosen(groups), groups.tokens.spread(groups.rewards.flatten()))
    assert chosen.live(groups).tolist() == [True] * N


@pytest.mark.parametrize(("decay", "ridge"), [(0.9, 1e-2), (0.9, 1.0), (0.5, 1e-4), (0.0, 1e-2)])
@pytest.mark.parametrize("n_steps", [1, 2, 4])
def test_what_it_learns_is_ridge_regression_on_a_moving_average(decay, ridge, n_steps):
    steps = [draw(seed) for seed in range(n_steps)]
    expected = ridge_regression(steps, decay, ridge)
    assert taught(steps, decay=decay, ridge=ridge).solution.tolist() == pytest.approx(expected, rel=1e-9)
    assert min(map(abs, expected)) > 0.01


@pytest.mark.parametrize("trace", [1.0, 0.9, 0.0])
def test_advantages_against_a_plain_loop(trace):
    groups = draw()
    chosen = taught([draw(1), draw(2)], trace=trace)
    *w, c = chosen.solution.tolist()
    hidden, values = iter(groups.tokens.hidden.tolist()), []
    for length in groups.lengths.flatten().tolist():
        values.append([sum(map(math.prod, zip(w, next(hidden), strict=True))) + c for _ in range(length)])
    expected = generalised_advantages(groups.rewards.flatten().tolist(), values, trace)
    found = chosen(groups)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    if trace == 1:
        flat = [r - v for r, own in zip(groups.rewards.flatten().tolist(), values, strict=True) for v in own]
        assert found.tolist() == pytest.approx(flat, abs=1e-6)


def test_a_step_changes_nothing_before_it_is_over():
    chosen = taught([draw(1)])
    before = chosen(draw())
    chosen.study(draw())
    assert torch.equal(chosen(draw()), before)
    chosen.learn(draw())
    assert not torch.allclose(chosen(draw()), before)


def test_micro_batches_learn_what_the_step_does():
    whole, halves = taught([draw(1), draw(2)]), baseline("value")
    for groups in (draw(1), draw(2)):
        halves.study(part(groups, [4, 0, 3]))
        halves.study(part(groups, [1, 2, 5]))
        halves.learn(groups)
    torch.testing.assert_close(halves.solution, whole.solution, rtol=1e-10, atol=0)


def test_ranks_learn_what_one_process_does():
    whole, ranks = taught([draw(1), draw(2)]), [baseline("value"), baseline("value")]
    for groups in (draw(1), draw(2)):
        for rank, own in zip(ranks, ([4, 0, 3], [1, 2, 5]), strict=True):
            rank.study(part(groups, own))
        seen = [rank.studied.clone() for rank in ranks]
        for rank, others in zip(ranks, reversed(seen), strict=True):
            rank.learn(groups, lambda sums, others=others: sums + others)
    for rank in ranks:
        torch.testing.assert_close(rank.solution, whole.solution, rtol=1e-10, atol=0)


def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_happened():
    chosen, again = taught([draw(1), draw(2)]), baseline("value")
    again.load_state_dict(deepcopy(chosen.state_dict()))
    for seed in (3, 4):
        groups = draw(seed)
        assert torch.equal(again(groups), chosen(groups))
        for each in (again, chosen):
            each.study(groups)
            each.learn(groups)
    again.load_state_dict(baseline("value").state_dict())  # of a run that has not learnt anything
    assert torch.equal(again(groups), baseline("value")(groups))


def test_it_predicts_a_reward_that_is_linear_in_the_hidden_state():
    """With as much noise again in the hidden state as there is signal along the direction of the reward."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.tensor([0.6, -0.8, 0.0])

    def step():
        states, lengths = torch.randn(N * G, D, generator=generator), torch.randint(1, 9, (N, G), generator=generator)
        rewards = (states @ direction + 0.5).view(N, G)
        of_tokens = states.repeat_interleave(lengths.flatten(), 0)
        return make(rewards, lengths, hidden=of_tokens + 0.3 * torch.randn(of_tokens.shape, generator=generator))

    chosen, fresh = taught([step() for _ in range(5)]), step()
    errors = chosen(fresh).square().mean()
    assert errors < 0.15 * baseline("value")(fresh).square().mean()
    assert errors < 0.2 * fresh.rewards.var()  # the best constant is no match


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("trace", value) for value in (-0.1, 1.1, math.nan)),
        *(("decay", value) for value in (-0.1, 1.0, math.nan)),
        *(("ridge", value) for value in (0.0, -1.0, math.nan)),
    ],
)
def test_a_setting_that_cannot_work_is_named(setting, value):
    with pytest.raises(Exception, match=rf"baseline\.{setting}: ") as caught:
        baseline("value", **{setting: value})
    assert isinstance(caught.value.__cause__, SettingError)
