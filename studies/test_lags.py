"""Many policies at once are those of the laboratory, one by one; what is fresh needs no correction."""

import neighbours  # noqa: F401
import pytest
import torch
from laboratory import Sequences
from lags import LENGTH, PROMPTS, SIZE, TASKS, WAYS, Policies, learn, sampled


def test_policies_are_the_laboratorys():
    policies, lab = Policies([3, 5, 3], "graded"), Sequences(PROMPTS, 2, SIZE, 5, LENGTH)
    logs, gradients = policies.token_logs(policies.theta), policies.gradients(policies.theta)
    torch.testing.assert_close(logs[1], lab.token_logs(lab.theta))
    torch.testing.assert_close(gradients[1], lab.gradients)
    assert torch.equal(gradients[0], gradients[2])
    assert Policies([5], "rare").rewards.unique().tolist() == [0, 1]


def test_responses_are_drawn_as_often_as_their_policy_says():
    policies = Policies([0, 1], "graded")
    logs = policies.token_logs(policies.theta)
    counts = torch.zeros(policies.rewards.shape, dtype=torch.float64)
    for step in range(400):
        prompts, responses = sampled(logs, [0, 1], 1, step)
        counts.index_put_((torch.arange(2)[:, None, None], prompts[..., None], responses), torch.ones(1).double(), True)
    assert counts.sum().item() == 2 * 400 * 8 * 4
    shares = counts / counts.sum(2, keepdim=True)
    expected = logs.sum(3).exp()
    errors = (shares - expected) / (expected * (1 - expected) / counts.sum(2, keepdim=True)).sqrt()
    assert errors.square().mean().item() == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("task", TASKS)
def test_what_is_fresh_needs_no_correction(task):
    found = {name: learn(WAYS[name], 0, [0.5, 1.0], [7, 8], task, 5) for name in WAYS}
    assert found["ratios"].shape == (5, 2, 2)
    for name, rewards in found.items():
        if name != "ratios, weights ρ²n of the others":
            torch.testing.assert_close(rewards, found["ratios"], msg=name)
    old = learn(WAYS["ratios"], 2, [0.5, 1.0], [7, 8], task, 5)
    assert torch.equal(old[0], found["ratios"][0])  # nothing is old yet
    assert not torch.equal(old, found["ratios"])
