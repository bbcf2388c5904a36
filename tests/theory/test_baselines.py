"""Who is unbiased, by how much the others are not, and that no constant baseline beats the optimal one."""

import pytest
import torch
from theory.laboratory import Laboratory

from oblr.baselines.adaptive import AdaptiveBaseline
from oblr.baselines.base import Groups
from oblr.baselines.batch_mean import BatchMeanBaseline
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.group_mean import GroupMeanBaseline
from oblr.baselines.group_mean_std import GroupMeanStdBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.opo import OPOBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.baselines.shrinkage import ShrinkageBaseline


def with_history(baseline):
    """The same baseline after a few steps: what it has learnt must not bias it."""
    lab, generator = Laboratory(seed=5), torch.Generator().manual_seed(0)
    for _ in range(3):
        prompts, responses = lab.sample(8, 4, generator)
        at = (prompts[:, None], responses)
        baseline.learn(Groups(lab.rewards[at], lab.square_norms[at], lab.lengths[at], lab.rewards[at]))
    return baseline


UNBIASED = {
    "none": NoBaseline(),
    "rloo": RLOOBaseline(),
    "opo": OPOBaseline(),
    "gradient_weighted": GradientWeightedBaseline(),
    "cross_fitted": GradientWeightedBaseline("cross_fitted"),
    "batch_mean": BatchMeanBaseline(),
    "shrinkage": ShrinkageBaseline(),
    "adaptive, first step": AdaptiveBaseline(),
    "adaptive": with_history(AdaptiveBaseline()),
    "adaptive, shrinking": with_history(AdaptiveBaseline((1.0, 3.0))),
}
BIASED = {
    "opo, pooled": OPOBaseline(pooled=True),
    "gradient_weighted, pooled": GradientWeightedBaseline("pooled"),
    "group_mean_std": GroupMeanStdBaseline(),
    "batch_mean, normalised": BatchMeanBaseline(normalise=True),
}


def advantages(baseline):
    return lambda rewards, weights, lengths: baseline(Groups(rewards, weights, lengths, rewards))


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize(("n_groups", "group_size", "responses"), [(1, 4, 3), (2, 2, 3), (3, 2, 2)])
def test_unbiased(name, n_groups, group_size, responses):
    lab = Laboratory(responses=responses)
    mean, _ = lab.moments(advantages(UNBIASED[name]), n_groups, group_size)
    assert (mean - lab.gradient).norm() / lab.gradient.norm() < 1e-10


@pytest.mark.parametrize("name", BIASED)
def test_biased(name):
    lab = Laboratory()
    mean, _ = lab.moments(advantages(BIASED[name]))
    assert (mean - lab.gradient).norm() / lab.gradient.norm() > 0.01


def test_the_group_mean_is_short_by_one_in_g():
    lab = Laboratory()
    mean, _ = lab.moments(advantages(GroupMeanBaseline()), group_size=3)
    torch.testing.assert_close(mean, lab.gradient * (1 - 1 / 3), rtol=1e-10, atol=0)


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_exact_variance_of_a_group_gradient(group_size):
    """``tr H = E_q[E‖(R−b)∇log π‖²/G + (1 − 1/G)‖∇J_q‖²] − ‖∇J‖²``."""
    lab, values = Laboratory(), torch.tensor([0.2, 0.7], dtype=torch.float64)
    _, noise = lab.moments(lab.constant(values), group_size=group_size)
    single = (lab.probabilities * (lab.rewards - values[:, None]).square() * lab.square_norms).sum(1)
    between = lab.prompt_gradients.square().sum(1)
    expected = (single / group_size + (1 - 1 / group_size) * between).mean() - lab.gradient.square().sum()
    assert noise == pytest.approx(expected.item(), rel=1e-10)


def test_theorem_7_no_other_constant_baseline_has_less_noise():
    lab = Laboratory()
    best = lab.optimal_baseline
    _, least = lab.moments(lab.constant(best))
    for change in torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        _, noise = lab.moments(lab.constant(best + 0.1 * change))
        assert noise > least
    _, noise_of_means = lab.moments(lab.constant((lab.probabilities * lab.rewards).sum(1)))
    assert noise_of_means > least
