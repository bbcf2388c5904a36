"""Shrinkage of a weighted mean; the plain loop is in test_registry.py."""

import pytest
import torch
from baseline_steps import G, N, baseline, draw, make

from oblr.baselines.base import Groups
from oblr.baselines.shrinkage import leave_one_out_sizes


def test_effective_sizes():
    weights = [[1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 5.0], [7.0, 7.0, 7.0, 7.0]]
    expected = [[25 / 13, 16 / 10, 9 / 5, 36 / 14], [1, 1, 1, 3], [3, 3, 3, 3]]  # nothing is left of one: all three
    for row, sizes in zip(expected, leave_one_out_sizes(torch.tensor(weights)).tolist(), strict=True):
        assert sizes == pytest.approx(row, rel=1e-12)


def test_the_fewer_effective_responses_the_more_is_shrunk():
    groups, chosen = draw(), baseline("shrinkage", weighted=True)
    factor, plain = (chosen.factor(groups, weights) for weights in (groups.reward_weights, torch.ones(N, G)))
    assert ((plain > 0) & (plain < factor) & (factor < 1)).all()


def test_uniform_weights_are_the_unweighted_shrinkage():
    groups = draw()
    uniform = make(groups.rewards, groups.lengths, torch.full((N, G), 3.0).double())
    expected = baseline("shrinkage")(groups)
    torch.testing.assert_close(baseline("shrinkage", weighted=True)(uniform), expected, rtol=0, atol=1e-6)
    different = baseline("shrinkage", weighted=True)(groups)
    assert (different - expected).abs().max() > 0.1


@pytest.mark.parametrize("weighted", [False, True])
def test_fewer_than_three_groups_are_not_shrunk(weighted):
    groups, chosen = draw(), baseline("shrinkage", weighted=weighted)
    plain = baseline("gradient_weighted" if weighted else "rloo")
    for n in (1, 2, 3):
        few = make(groups.rewards[:n], groups.lengths[:n], groups.reward_weights[:n])
        assert torch.equal(chosen(few), plain(few)) == (n < 3)


def test_equal_rewards_are_live_where_the_whole_step_has_three_groups():
    """However few of them are this rank's."""
    groups, chosen = draw(), baseline("shrinkage")
    groups.rewards[0] = 1.0
    mine = groups.rewards[:2], groups.reward_weights[:2], groups.lengths[:2]
    share, alone = Groups(*mine, groups.rewards), Groups(*mine, groups.rewards[:2])
    assert chosen.live(share).tolist() == [True, True]
    assert chosen.live(alone).tolist() == [False, True]
    assert (chosen(share)[0] != 0).all()
    assert chosen(alone)[0].abs().max() < 1e-12


def test_nothing_is_shrunk_where_other_groups_are_without_noise():
    """λ = 0 for the one group whose rewards differ; for another, whose fellows have them, it is not."""
    groups = draw()
    groups.rewards[1:] = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])[:, None]
    chosen = baseline("shrinkage", weighted=True)
    factor = chosen.factor(groups, groups.reward_weights)
    assert (factor[0] == 0).all()
    assert (factor[1:] > 0).all()
    assert torch.equal(chosen(groups)[0], baseline("gradient_weighted")(groups)[0])


def test_groups_that_behave_alike_are_pooled():
    """Means of groups that differ no more than their rewards' noise explains: λ = 1."""
    groups = draw()
    groups.rewards[:] = torch.tensor([1.0, 0.0]).repeat(G // 2)
    chosen = baseline("shrinkage", weighted=True)
    assert (chosen.factor(groups, groups.reward_weights) == 1).all()
    torch.testing.assert_close(chosen(groups), groups.rewards - 0.5, rtol=0, atol=1e-6)
