"""Shrinkage of a mean; the plain loop is in test_registry.py."""

import torch
from baseline_steps import G, baseline, draw, make

from oblr.baselines.base import Groups


def test_fewer_than_three_groups_are_not_shrunk():
    groups, chosen, plain = draw(), baseline("shrinkage"), baseline("rloo")
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
    chosen = baseline("shrinkage")
    factor = chosen.factor(groups)
    assert (factor[0] == 0).all()
    assert (factor[1:] > 0).all()
    assert torch.equal(chosen(groups)[0], baseline("rloo")(groups)[0])


def test_groups_that_behave_alike_are_pooled():
    """Means of groups that differ no more than their rewards' noise explains: λ = 1."""
    groups = draw()
    groups.rewards[:] = torch.tensor([1.0, 0.0]).repeat(G // 2)
    chosen = baseline("shrinkage")
    assert (chosen.factor(groups) == 1).all()
    torch.testing.assert_close(chosen(groups), groups.rewards - 0.5, rtol=0, atol=1e-6)
