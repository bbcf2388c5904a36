import pytest
import torch

from oblr.baselines.base import live_groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.group_mean_std import GroupMeanStdBaseline
from oblr.baselines.leave_one_out import leave_one_out_means
from oblr.baselines.rloo import RLOOBaseline


def draw(n=5, g=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(n, g, generator=generator).round()
    weights = torch.rand(n, g, generator=generator, dtype=torch.float64).pow(4) * 1e4
    return rewards, weights


def test_gradient_weighted_equals_the_plain_loop():
    rewards, weights = draw()
    advantages = GradientWeightedBaseline()(rewards, weights)
    for q in range(rewards.shape[0]):
        for i in range(rewards.shape[1]):
            others = [j for j in range(rewards.shape[1]) if j != i]
            baseline = sum(weights[q, j] * rewards[q, j] for j in others) / sum(weights[q, j] for j in others)
            assert advantages[q, i].item() == pytest.approx((rewards[q, i] - baseline).item(), abs=1e-6)


def test_closed_form_from_the_pooled_mean():
    """``R_i − b_i = (R_i − b̄)/(1 − w_i/S)``."""
    rewards, weights = draw()
    total = weights.sum(1, keepdim=True)
    pooled = (weights * rewards).sum(1, keepdim=True) / total
    expected = (rewards - pooled) / (1 - weights / total)
    torch.testing.assert_close(GradientWeightedBaseline()(rewards, weights).double(), expected)


def test_own_reward_and_weight_do_not_enter_the_own_baseline():
    rewards, weights = draw()
    before = leave_one_out_means(rewards, weights)
    rewards[:, 3] += 5
    weights[:, 3] *= 100
    after = leave_one_out_means(rewards, weights)
    assert torch.equal(before[:, 3], after[:, 3])
    assert not torch.allclose(before[:, 0], after[:, 0])


def test_one_weight_that_dominates_does_not_cancel():
    rewards = torch.tensor([[1.0, 0.0, 1.0]])
    weights = torch.tensor([[1e20, 1.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(leave_one_out_means(rewards, weights)[0, 0], torch.tensor(0.75).double())
    weights[0, 1:] = 0  # nothing is left: the others' plain mean
    torch.testing.assert_close(leave_one_out_means(rewards, weights)[0, 0], torch.tensor(0.5).double())


def test_equal_weights_are_rloo():
    rewards, _ = draw()
    expected = rewards - (rewards.sum(1, keepdim=True) - rewards) / 7
    torch.testing.assert_close(RLOOBaseline()(rewards, torch.full_like(rewards, torch.nan)), expected)
    torch.testing.assert_close(GradientWeightedBaseline()(rewards, torch.full((5, 8), 3.0)), expected)


def test_grpo():
    rewards, _ = draw()
    advantages = GroupMeanStdBaseline(epsilon=1e-6)(rewards, torch.full_like(rewards, torch.nan))
    for row, out in zip(rewards.tolist(), advantages.tolist(), strict=True):
        mean = sum(row) / 8
        std = (sum((r - mean) ** 2 for r in row) / 8) ** 0.5
        assert out == pytest.approx([(r - mean) / (std + 1e-6) for r in row], abs=1e-4)


@pytest.mark.parametrize("baseline", [GradientWeightedBaseline(), RLOOBaseline(), GroupMeanStdBaseline()])
def test_equal_rewards_give_zero_advantages(baseline):
    rewards = torch.full((2, 4), 0.3)
    assert not live_groups(rewards).any()
    advantages = baseline(rewards, torch.rand(2, 4))
    torch.testing.assert_close(advantages, torch.zeros(2, 4))
