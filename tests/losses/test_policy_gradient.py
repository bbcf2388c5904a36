import torch

from oblr.losses.policy_gradient import PolicyGradientLoss

ADVANTAGES = torch.tensor([[1.0, -0.5], [0.25, 0.0]])
RATIOS = torch.tensor([[0.9, 1.2], [1.0, 3.0]], dtype=torch.float64)


def test_coefficients():
    expected = [[0.9 * 1.0 / 2, 1.2 * -0.5 / 2], [1.0 * 0.25 / 2, 0.0]]
    assert torch.allclose(PolicyGradientLoss().coefficients(ADVANTAGES, RATIOS), torch.tensor(expected).double())


def test_without_importance_ratios():
    loss = PolicyGradientLoss(importance=False)
    assert torch.equal(loss.coefficients(ADVANTAGES, RATIOS), (ADVANTAGES / 2).double())
    assert torch.equal(loss.sequence_ratios(RATIOS), torch.ones_like(RATIOS))
