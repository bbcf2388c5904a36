"""Groups whose rewards agree, replaced by others: the mean gradient keeps its direction, and its length is known."""

import itertools

import pytest
import torch
from cases import wide
from laboratory import Laboratory

from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.types import Rollout, RolloutBatch
from oblr.problem import Completion, Problem


@pytest.fixture(scope="module")
def lab():
    lab = Laboratory(prompts=2, responses=3)
    lab.rewards = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    return lab


def batch_of(rewards):
    """One group, as a step has it."""
    completion = Completion([0], [0.0], finished=True)
    return RolloutBatch([Rollout(Problem("", "", ""), [0], completion, "", reward) for reward in rewards], 2, 1)


def mean_gradient(lab, baseline, refill):
    """Exact mean of a place of the step, over everything that can be drawn for it; and the chance to agree."""
    drawn = list(lab.steps(1, 2))
    mean, agreeing = torch.zeros_like(lab.theta), 0.0
    for chance, prompts, responses in drawn:
        at = (prompts[:, None], responses)
        agreeing += chance * bool(batch_of(lab.rewards[at][0].tolist()).agreeing)
    for tries in itertools.product(drawn, repeat=refill + 1):
        chance, place, own = 1.0, None, None
        for p, prompts, responses in tries:
            chance *= p
            other = batch_of(lab.rewards[prompts[:, None], responses][0].tolist())
            if place is None or place.agreeing:
                place, own = other if place is None else place.refilled_with(other, [0], 1), (prompts, responses)
        at = (own[0][:, None], own[1])
        assert place.rewards.tolist() == lab.rewards[at].tolist()
        groups = Groups(lab.rewards[at], lab.square_norms[at], lab.lengths[at], lab.rewards[at])
        mean += chance * (baseline(groups).double()[..., None] * lab.gradients[at]).mean((0, 1))
    return mean, agreeing


@pytest.mark.parametrize("refill", [1, *wide(0, 2)])
@pytest.mark.parametrize("baseline", [RLOOBaseline(), GradientWeightedBaseline()], ids=lambda b: b.words)
def test_the_direction_is_the_policys_and_the_length_grows_as_said(lab, baseline, refill):
    mean, agreeing = mean_gradient(lab, baseline, refill)
    length = sum(agreeing**r for r in range(refill + 1))
    assert 0.1 < agreeing < 0.9
    torch.testing.assert_close(mean, length * lab.gradient, rtol=1e-6, atol=1e-8)


def test_it_is_another_direction_where_groups_that_agree_have_a_gradient(lab):
    """Why such baselines are refused."""
    mean, _ = mean_gradient(lab, NoBaseline(), 2)
    assert torch.cosine_similarity(mean, lab.gradient, 0) < 1 - 1e-4
