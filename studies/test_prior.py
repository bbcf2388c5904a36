"""How responses are chosen by chance, and what that does to a gradient, on numbers made by hand."""

import itertools

import pytest
import torch
from prior import Place, advantages_of, keep, thinned

from oblr.baselines.gradient_weighted import GradientWeightedBaseline


def drawn(seed=0):
    generator = torch.Generator().manual_seed(seed)
    rewards = (torch.rand(4, 3, 8, generator=generator) < 0.7).double()
    norms, lengths = 1 + 9 * torch.rand(2, 4, 3, 8, generator=generator).double()
    return Place(rewards, norms, lengths, {"half": norms / 2})


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_so_many_tokens_are_expected_to_stay(share):
    generator = torch.Generator().manual_seed(1)
    score, lengths = (
        torch.rand(3, 8, generator=generator).double() ** 4,
        1 + torch.rand(3, 8, generator=generator).double(),
    )
    score[0, :3] = 0
    chances = keep(score, lengths, share)
    assert (chances[0, :3] == 0).all()
    assert (chances * lengths).sum().item() == pytest.approx(share * lengths[score > 0].sum().item(), rel=1e-6)
    free = (chances > 0) & (chances < 1)
    torch.testing.assert_close(chances[free] / chances[free][0], score[free] / score[free][0])


def test_what_is_kept_by_chance_and_reweighted_has_the_gradient_of_all():
    """Mean over every subset, and its second moment, which the study gives without a draw."""
    score, terms = (
        torch.tensor([0.1, 0.4, 2.0], dtype=torch.float64),
        torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64),
    )
    chances = keep(score, torch.ones(3, dtype=torch.float64), 0.5)
    mean = square = 0.0
    for kept in itertools.product((0.0, 1.0), repeat=3):
        kept = torch.tensor(kept, dtype=torch.float64)
        chance = torch.where(kept > 0, chances, 1 - chances).prod()
        mean += chance * (kept * terms / chances).sum()
        square += chance * (kept * terms / chances).square().sum()
    assert mean.item() == pytest.approx(terms.sum().item())
    assert square.item() == pytest.approx((terms.square() / chances).sum().item())


def test_the_best_choice_knows_the_norms():
    place = drawn()
    noise = {name: of.sum().item() for name, of in thinned(place, advantages_of(place)["rloo"]).items()}
    best = noise["|A| √(n̂/length), exact"]
    assert noise["all"] < best == min(value for name, value in noise.items() if name != "all")
    assert noise["|A| √(n̂/length), half"] == pytest.approx(best)  # a factor changes nothing
    assert noise["random"] == pytest.approx(2 * noise["all"])


def test_the_optimum_is_of_the_prompt_s_other_groups():
    place = drawn()
    q, k = 1, 2
    others = [j for j in range(4) if j != k]
    products = sum((place.norms[j, q] * place.rewards[j, q]).sum() for j in others)
    assert place.optimum[k, q, 0].item() == pytest.approx(
        (products / sum(place.norms[j, q].sum() for j in others)).item()
    )


def test_advantages_are_the_baselines_own_step_after_step():
    place, chosen = drawn(), GradientWeightedBaseline(prior="past")
    for k, groups in enumerate(place.steps()):
        assert torch.equal(advantages_of(place)["prior=past"][k], chosen(groups))
        chosen.learn(groups)
