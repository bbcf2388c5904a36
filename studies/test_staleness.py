"""Steps on stale responses: their mean is the gradient, and their weights tell how stale they are."""

import pytest
import torch
from laboratory import Laboratory
from staleness import Stale

RUNS = 20_000


@pytest.fixture(scope="module")
def lab() -> Laboratory:
    return Laboratory(prompts=2, responses=3, size=3, seed=1)


def everywhere(theta: torch.Tensor) -> torch.Tensor:
    return theta.expand(RUNS, -1)


@pytest.mark.parametrize("distance", [0, 0.5])
def test_steps_on_older_responses_are_the_gradient_on_average(lab, distance):
    policy, theta = Stale(lab, RUNS, group_size=4), everywhere(lab.theta)
    steps, _ = policy.sample(theta, theta + distance, torch.Generator().manual_seed(0))
    assert policy.gradient(theta)[0].tolist() == pytest.approx(lab.gradient.tolist())
    errors = steps.std(0) / RUNS**0.5
    assert ((steps.mean(0) - lab.gradient).abs() < 4 * errors).all()
    assert (errors < 0.01 * lab.gradient.norm()).all()  # sharp enough to tell


def test_what_the_policy_itself_sampled_is_all_effective_and_what_an_older_one_did_is_less(lab):
    policy, theta = Stale(lab, 50), lab.theta.expand(50, -1)
    generator = torch.Generator().manual_seed(0)
    assert policy.sample(theta, theta, generator)[1].tolist() == pytest.approx([1] * 50)
    near, far = (policy.sample(theta, theta * (1 - d), generator)[1].mean() for d in (0.3, 1))
    assert far < near < 1


def test_noise_is_how_far_steps_are_from_the_gradient(lab):
    policy, seen = Stale(lab, RUNS), []
    policy.run(lambda step: seen.append(step.factor) or 0.0, lag=0, steps=1, seed=0)
    steps, _ = policy.sample(everywhere(lab.theta), everywhere(lab.theta), torch.Generator().manual_seed(1))
    noise, signal = (steps - lab.gradient).square().sum(1).mean().item(), lab.gradient.square().sum().item()
    assert (signal / seen[0] - signal).mean() == pytest.approx(noise, rel=0.05)


def test_a_run_without_a_rate_stays_where_it_is_and_a_lag_is_of_so_many_steps(lab):
    policy = Stale(lab, 3)
    assert policy.run(lambda seen: 0.0, lag=2, steps=8, seed=0).tolist() == pytest.approx(
        policy.objective(lab.theta.expand(3, -1)).tolist()
    )
    effective = []
    policy.run(lambda seen: effective.append(seen.ess) or 0.5, lag=2, steps=4, seed=0)
    assert effective[0].tolist() == pytest.approx([1] * 3)  # nothing is older than the start
    assert all((ess < 1).any() for ess in effective[1:])
