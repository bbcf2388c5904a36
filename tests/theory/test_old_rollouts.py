"""Rollouts of older weights: with ratios of sequences the exact mean of the step's gradient is the policy's own."""

import copy

import pytest
import torch
from laboratory import Endings, Laboratory, Sequences

from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.types import ResponseTokens
from oblr.losses.policy_gradient import PolicyGradientLoss


def trained(lab, steps, rate=1.0):
    """The policy as it is before each of these steps: each follows the exact gradient."""
    labs = [lab]
    for _ in range(steps):
        lab = copy.copy(lab)
        lab.theta = lab.theta + rate * lab.gradient / lab.gradient.norm()
        labs.append(lab)
    return labs


def mean_gradient(policy, behaviour, loss, baseline, group_size=3):
    """Exact mean of a group's gradient where ``behaviour`` samples, by the loss and the baseline of a step."""
    chances, prompts, responses = zip(*behaviour.steps(1, group_size), strict=True)
    at = (torch.cat(prompts)[:, None], torch.cat(responses))  # every group there can be, at once
    logs, of_behaviour = policy.token_logs(policy.theta)[at], behaviour.token_logs(behaviour.theta)[at]
    count, length = at[1].numel(), logs.shape[2]
    tokens = ResponseTokens(
        logs=(logs - of_behaviour).flatten(),
        energy=torch.zeros(count * length, dtype=torch.float64),
        sequences=torch.arange(count).repeat_interleave(length),
        behaviour=of_behaviour.sum(2).flatten(),
        lengths=torch.full((count,), length),
        group_size=group_size,
    )
    norms = policy.square_norms[at]
    weights = loss.reward_weights(tokens, norms.flatten()).view_as(norms)
    rewards = policy.rewards[at]
    advantages = baseline(Groups(rewards, weights, policy.lengths[at], rewards, problems=at[0][:, 0]))
    coefficients = loss.coefficients(tokens, advantages.flatten().double(), per_token=False)
    chance = torch.tensor(chances, dtype=torch.float64).repeat_interleave(group_size)
    return ((chance * coefficients)[:, None] * policy.gradients[at].flatten(0, 1)).sum(0)


@pytest.mark.parametrize("age", [0, 1, 2, 4])
@pytest.mark.parametrize("baseline", [NoBaseline(), RLOOBaseline(), GradientWeightedBaseline()], ids=lambda b: b.words)
@pytest.mark.parametrize("lab", [Laboratory(), Sequences(), Endings(prompts=1)], ids=lambda lab: type(lab).__name__)
def test_unbiased_at_any_age(lab, baseline, age):
    *_, policy = labs = trained(lab, 4)
    behaviour = labs[-1 - age]
    found = mean_gradient(policy, behaviour, PolicyGradientLoss(), baseline)
    assert (found - policy.gradient).norm() / policy.gradient.norm() < 1e-10


@pytest.mark.parametrize("loss", [PolicyGradientLoss("none"), PolicyGradientLoss("sequence", truncate=1.1)])
def test_what_is_not_corrected_is_biased(loss):
    """Or the test above could not fail."""
    labs = trained(Laboratory(), 2)
    bias = [
        (mean_gradient(labs[2], labs[2 - age], loss, RLOOBaseline()) - labs[2].gradient).norm() for age in (0, 1, 2)
    ]
    assert bias[0] < 1e-10
    assert bias[2] > bias[1] > 0.01 * labs[2].gradient.norm()
