"""The KL penalty against autograd through its estimators as published, and against the divergences themselves."""

import itertools
import math

import pytest
import torch
from composing import composed
from hydra.utils import instantiate
from torch import Tensor

from oblr.errors import SettingError
from oblr.losses.kl import KLPenalty

BETA = 0.3
ESTIMATORS = {
    "k2": lambda policy, reference: 0.5 * (policy - reference).square(),
    "k3": lambda policy, reference: (reference - policy).exp() - 1 - (reference - policy),
}


def draw(n: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    policy, reference = (-3 * torch.rand(n, generator=generator, dtype=torch.float64) for _ in range(2))
    return policy, reference


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_token_coefficients_are_the_derivatives_of_the_estimator(estimator):
    policy, reference = draw()
    policy.requires_grad_()
    (BETA * ESTIMATORS[estimator](policy, reference)).sum().backward()
    penalty = KLPenalty(estimator, BETA)
    found = penalty.token_coefficients(policy, reference)
    torch.testing.assert_close(found, policy.grad, rtol=1e-10, atol=0)
    assert not found.requires_grad
    assert not penalty.shapes_reward
    assert torch.equal(penalty.reward_penalty(policy, reference, torch.zeros(20).long(), 2), torch.zeros(2).double())


@pytest.mark.parametrize(
    ("estimator", "divergence"),
    [
        ("k2", lambda policy, reference: (policy.exp() * (policy - reference)).sum()),
        ("k3", lambda policy, reference: (reference.exp() * (reference - policy)).sum()),
    ],
)
def test_a_token_is_on_average_penalised_by_a_divergence(estimator, divergence):
    """Over a whole vocabulary: k2 by KL(π‖ref), k3 by KL(ref‖π)."""
    torch.manual_seed(0)
    logits, reference = torch.randn(9, dtype=torch.float64, requires_grad=True), torch.randn(9).double().log_softmax(0)
    policy = logits.log_softmax(0)
    (expected,) = torch.autograd.grad(BETA * divergence(policy, reference), logits, retain_graph=True)
    coefficients = KLPenalty(estimator, BETA).token_coefficients(policy, reference)
    (found,) = torch.autograd.grad((policy.exp().detach() * coefficients * policy).sum(), logits)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def two_tokens(logits: Tensor) -> Tensor:
    """Log-probabilities of both tokens of all sequences of two tokens out of three, [9, 2]; from logits [4, 3]."""
    logs = logits.log_softmax(-1)
    return torch.stack([torch.stack([logs[0, a], logs[1 + a, b]]) for a, b in itertools.product(range(3), repeat=2)])


def test_on_policy_k1_in_the_reward_is_the_gradient_of_the_divergence_of_sequences():
    torch.manual_seed(0)
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    policy, reference = two_tokens(logits), two_tokens(torch.randn(4, 3, dtype=torch.float64))

    def gradient(of: Tensor) -> Tensor:
        return torch.autograd.grad(of, logits, retain_graph=True)[0]

    weights = policy.sum(1).exp()
    expected = gradient(BETA * (weights * (policy - reference).sum(1)).sum())
    weights = weights.detach()
    ids = torch.arange(9).repeat_interleave(2)
    penalties = KLPenalty("k1", BETA).reward_penalty(policy.detach().flatten(), reference.flatten(), ids, 9)
    torch.testing.assert_close(gradient((weights * penalties * policy.sum(1)).sum()), expected, rtol=1e-10, atol=0)

    for estimator in ESTIMATORS:  # neither sees what the first token makes of the second
        coefficients = KLPenalty(estimator, BETA).token_coefficients(policy, reference)
        partial = gradient((weights[:, None] * coefficients * policy).sum())
        assert (partial[0] - expected[0]).norm() > 0.1 * expected[0].norm()
        if estimator == "k2":
            torch.testing.assert_close(partial[1:], expected[1:], rtol=1e-10, atol=0)


def test_k1_sums_over_the_tokens_of_each_response():
    behaviour, reference = draw(6)
    sequences = [0, 0, 2, 2, 2, 3]
    expected = [0.0] * 4
    for t, i in enumerate(sequences):
        expected[i] += BETA * (behaviour[t].item() - reference[t].item())
    penalty = KLPenalty("k1", BETA)
    found = penalty.reward_penalty(behaviour, reference, torch.tensor(sequences), 4)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert penalty.reward_penalty(behaviour.float(), reference.float(), torch.tensor(sequences), 4).dtype == found.dtype
    assert penalty.shapes_reward
    assert torch.equal(penalty.token_coefficients(behaviour, reference), torch.zeros(6).double())


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_no_penalty_at_the_reference(estimator):
    policy, _ = draw()
    penalty = KLPenalty(estimator, BETA)
    assert not penalty.reward_penalty(policy, policy, torch.zeros(20).long(), 1).any()
    assert not penalty.token_coefficients(policy, policy).any()


@pytest.mark.parametrize(
    ("estimator", "coefficient", "setting"),
    [("k4", 0.1, "estimator"), ("k1", -0.1, "coefficient"), ("k3", math.nan, "coefficient")],
)
def test_a_setting_that_cannot_work_is_named(estimator, coefficient, setting):
    with pytest.raises(SettingError, match=rf"kl\.{setting}: "):
        KLPenalty(estimator, coefficient)


@pytest.mark.parametrize("option", ["none", "k1", "k2", "k3"])
def test_what_a_configuration_refers_to_is_the_penalty_or_none(option):
    cfg = composed(f"kl={option}", "+user={_target_:builtins.dict,kl:${kl}}")
    penalty = instantiate(cfg.user, _convert_="all")["kl"]
    assert (penalty if penalty is None else penalty.estimator) == (None if option == "none" else option)
