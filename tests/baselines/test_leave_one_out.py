import pytest
import torch

from oblr.baselines.leave_one_out import leave_one_out_means


def draw(n=5, g=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(n, g, generator=generator).round()
    weights = torch.rand(n, g, generator=generator, dtype=torch.float64).pow(4) * 1e4
    return rewards, weights


def test_closed_form_from_the_pooled_mean():
    """``R_i − b_i = (R_i − b̄)/(1 − w_i/S)``."""
    rewards, weights = draw()
    total = weights.sum(1, keepdim=True)
    pooled = (weights * rewards).sum(1, keepdim=True) / total
    expected = (rewards - pooled) / (1 - weights / total)
    torch.testing.assert_close(rewards - leave_one_out_means(rewards, weights), expected)


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
    assert leave_one_out_means(rewards, weights)[0, 1] == pytest.approx(1)
