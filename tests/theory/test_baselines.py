"""Who is unbiased, by how much the others are not, and that no constant baseline beats the optimal one."""

import pytest
import torch
from laboratory import Endings, Laboratory

from oblr.baselines.base import Groups
from oblr.baselines.batch_mean import BatchMeanBaseline
from oblr.baselines.gradient_weighted import PRIORS, GradientWeightedBaseline
from oblr.baselines.group_mean import GroupMeanBaseline
from oblr.baselines.group_mean_std import GroupMeanStdBaseline
from oblr.baselines.none import NoBaseline
from oblr.baselines.opo import OPOBaseline
from oblr.baselines.otb import OTBBaseline
from oblr.baselines.remax import ReMaxBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.baselines.shrinkage import ShrinkageBaseline
from oblr.baselines.value import ValueBaseline
from oblr.batch.types import ResponseTokens


def with_history(baseline):
    """The same baseline after a few steps: what it has learnt must not bias it."""
    lab, generator = Laboratory(seed=5), torch.Generator().manual_seed(0)
    for _ in range(3):
        prompts, responses = lab.sample(8, 4, generator)
        at = (prompts[:, None], responses)
        of_responses = (lab.rewards[at], lab.square_norms[at], lab.lengths[at], lab.rewards[at])
        baseline.learn(Groups(*of_responses, problems=prompts, step_weights=lab.square_norms[at]))
    return baseline


UNBIASED = {
    "none": NoBaseline(),
    "rloo": RLOOBaseline(),
    "opo": OPOBaseline(),
    "gradient_weighted": GradientWeightedBaseline(),
    "cross_fitted": GradientWeightedBaseline("cross_fitted"),
    "batch_mean": BatchMeanBaseline(),
    "shrinkage": ShrinkageBaseline(),
    "remax": ReMaxBaseline(),
    **{f"prior={name}, first step": GradientWeightedBaseline(prior=name) for name in PRIORS},
    **{f"prior={name}": with_history(GradientWeightedBaseline(prior=name)) for name in PRIORS},
    "prior=past, cross_fitted": with_history(GradientWeightedBaseline("cross_fitted", "past", (3.0,))),
}
BIASED = {
    "opo, pooled": OPOBaseline(pooled=True),
    "gradient_weighted, pooled": GradientWeightedBaseline("pooled"),
    "group_mean_std": GroupMeanStdBaseline(),
    "batch_mean, normalised": BatchMeanBaseline(normalise=True),
}


def advantages(baseline, lab):
    greedy = lab.rewards.gather(1, lab.probabilities.argmax(1, keepdim=True))[:, 0]  # of each prompt

    def found(rewards, weights, lengths):
        prompts = lab.prompts_of(rewards)
        return baseline(Groups(rewards, weights, lengths, rewards, greedy[prompts], None, prompts, weights))

    return found


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize(("n_groups", "group_size", "responses"), [(1, 4, 3), (2, 2, 3), (3, 2, 2)])
def test_unbiased(name, n_groups, group_size, responses):
    lab = Laboratory(responses=responses)
    mean, _ = lab.moments(advantages(UNBIASED[name], lab), n_groups, group_size)
    assert (mean - lab.gradient).norm() / lab.gradient.norm() < 1e-10


@pytest.mark.parametrize("name", BIASED)
def test_biased(name):
    lab = Laboratory()
    mean, _ = lab.moments(advantages(BIASED[name], lab))
    assert (mean - lab.gradient).norm() / lab.gradient.norm() > 0.01


def mean_gradient(baseline, lab, states, group_size):
    """Exact mean of a group's gradient with advantages of tokens, which see ``states`` [P, K, T, D]."""
    chances, prompts, responses = zip(*lab.steps(1, group_size), strict=True)
    at = (torch.cat(prompts)[:, None], torch.cat(responses))  # every group there can be, at once
    lengths, none = lab.lengths[at], torch.zeros(at[1].numel()).double()
    present = torch.arange(lab.token_gradients.shape[2]) < lengths[..., None]
    sequences = torch.arange(len(none)).repeat_interleave(lengths.flatten())
    energies, hidden = lab.token_energies[at][present], states[at][present]
    tokens = ResponseTokens(energies, energies, sequences, none, lengths.flatten(), group_size, hidden)
    coefficients = baseline(Groups(lab.rewards[at], lab.square_norms[at], lengths, lab.rewards[at], tokens=tokens))
    terms = torch.tensor(chances, dtype=torch.float64)[sequences // group_size] * coefficients / group_size
    return (terms[:, None] * lab.token_gradients[at][present]).sum(0)


def prefix_states(lab, size=2):
    """Hidden states ahead of each token, drawn for every prefix, [P, K, T, D]."""
    generator = torch.Generator().manual_seed(2)
    states = [torch.randn(len(x), lab.alphabet**t, size, generator=generator) for t, x in enumerate(lab.prefixes)]
    return torch.stack([lab.of_responses(x.double()) for x in states], 2)


def prefix_values(lab):
    """The reward to expect ahead of each token, as a hidden state of one unit, [P, K, T, 1]."""
    values = []
    for t in range(len(lab.prefixes)):
        chances, rewards = (x.view(len(x), lab.alphabet**t, -1) for x in (lab.probabilities, lab.rewards))
        values.append(lab.of_responses((chances * rewards).sum(2) / chances.sum(2)))
    return torch.stack(values, 2)[..., None]


def value(trace, *solution):
    baseline = ValueBaseline(trace=trace)
    baseline.solution = torch.tensor(solution, dtype=torch.float64)
    return baseline


def relative_bias(baseline, lab, states, group_size=3):
    return (mean_gradient(baseline, lab, states, group_size) - lab.gradient).norm() / lab.gradient.norm()


def test_what_follows_an_ending_changes_nothing():
    lab = Endings()
    assert lab.lengths.unique().tolist() == [1, 2, 3]
    after = torch.arange(3) >= lab.lengths[..., None]
    assert (lab.token_gradients[after] == 0).all()
    assert (lab.token_gradients[~after].norm(dim=1) > 0.01).all()
    gradient = torch.autograd.functional.jacobian(lab.objective, lab.theta)
    torch.testing.assert_close(lab.gradient, gradient, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    "baseline",
    [OTBBaseline(), value(1.0, 0.0, 0.0, 0.7), value(1.0, 0.5, -1.0, 0.3), value(1.0, -3.0, 2.0, -5.0)],
    ids=["otb", "value, constant", "value", "value, far off"],
)
@pytest.mark.parametrize("group_size", [2, 3])
def test_unbiased_with_advantages_of_tokens(baseline, group_size):
    lab = Endings()
    assert relative_bias(baseline, lab, prefix_states(lab), group_size) < 1e-10


@pytest.mark.parametrize(
    "baseline",
    [OTBBaseline(pooled=True), value(0.95, 0.5, -1.0, 0.3), value(0.0, 0.5, -1.0, 0.3)],
    ids=["otb, pooled", "value, 0.95", "value, 0"],
)
def test_biased_with_advantages_of_tokens(baseline):
    lab = Endings()
    assert relative_bias(baseline, lab, prefix_states(lab)) > 0.01


@pytest.mark.parametrize("trace", [0.0, 0.95, 1.0])
def test_any_trace_is_unbiased_with_the_true_value(trace):
    lab = Endings()
    assert relative_bias(value(trace, 1.0, 0.0), lab, prefix_values(lab)) < 1e-10


def test_a_value_that_sees_its_own_token_is_biased():
    lab = Endings()
    states = prefix_states(lab).roll(-1, 2)
    assert relative_bias(value(1.0, 0.5, -1.0, 0.3), lab, states) > 0.01


def test_the_group_mean_is_short_by_one_in_g():
    lab = Laboratory()
    mean, _ = lab.moments(advantages(GroupMeanBaseline(), lab), group_size=3)
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
