"""The gradient-weighted baseline's priors: visits and steps made by hand, and how near the optimum they come."""

import pytest
import torch
from baseline_steps import G, baseline, draw, make

from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import PRIORS, GradientWeightedBaseline


def visit(rewards, weights=(1, 1), problem=7):
    """One group of two responses to a problem, a step by itself."""
    rewards = torch.tensor([rewards], dtype=torch.float32)
    groups = make(rewards, torch.ones(1, 2, dtype=torch.int64), torch.tensor([weights], dtype=torch.float64))
    return Groups(*(groups.rewards, groups.reward_weights, groups.lengths, rewards), problems=torch.tensor([problem]))


def baselines(chosen, groups):
    return (groups.rewards - chosen(groups))[0].tolist()


def one_count(prior, count=1.0, decay=0.9):
    return GradientWeightedBaseline(prior=prior, pseudo_counts=[count], decay=decay)


@pytest.mark.parametrize(("decay", "expected"), [(0.0, (0, 1)), (0.5, (1 / 2, 1)), (1.0, (2 / 3, 1))])
def test_earlier_responses_to_a_prompt_are_others_that_count_less(decay, expected):
    chosen = one_count("history", decay=decay)
    chosen.learn(visit([1, 1]))
    assert baselines(chosen, visit([1, 0])) == pytest.approx(expected)


def test_two_visits_ago_counts_twice_less():
    chosen = one_count("history", decay=0.5)
    chosen.learn(visit([1, 1]))
    chosen.learn(visit([0, 0]))
    # 0.5 of two zeros and 0.25 of two ones, beside the other response
    assert baselines(chosen, visit([0, 0])) == pytest.approx([0.5 / 2.5] * 2)


def test_weights_are_absolute():
    """Of one other response, of weight 4 and reward 0, and of K = 2 means of weight 2 and of 3 w R over two."""
    past, history = one_count("past", 2.0), one_count("history", 1.0, decay=1.0)
    for chosen in (past, history):
        chosen.learn(visit([1, 0], [3, 1]))
    assert baselines(past, visit([1, 0], [2, 4]))[0] == pytest.approx((0 + 2 * 1.5) / (4 + 2 * 2))
    assert baselines(history, visit([1, 0], [2, 4]))[0] == pytest.approx((0 + 3) / (4 + 4))


def test_earlier_steps_fade():
    chosen = one_count("past", decay=0.5)
    chosen.learn(visit([1, 1], [4, 4]))
    chosen.learn(visit([0, 0], [2, 2]))
    assert chosen.prior(visit([0, 0])).flatten().tolist() == pytest.approx([0.5 * 8 / 3, (0.5 * 8 + 4) / 3])


def test_other_problems_have_no_part_in_a_history():
    chosen = one_count("history")
    chosen.learn(visit([1, 1], problem=8))
    assert baselines(chosen, visit([1, 0])) == [0, 1]


@pytest.mark.parametrize("prior", ["past", "history"])
def test_weights_of_zero_are_no_prior(prior):
    """The plain mean of the others is then over them alone."""
    chosen = one_count(prior)
    chosen.learn(visit([0, 0], [0, 0]))
    assert baselines(chosen, visit([1, 1], [0, 0])) == [1, 1]


@pytest.mark.parametrize("prior", ["past", "history"])
def test_equal_rewards_are_news_to_a_prior(prior):
    chosen, right = one_count(prior), visit([1, 1])
    assert chosen.live(right).all()
    chosen.learn(visit([0, 0]))
    assert (chosen(right) >= 0.5).all()


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("form", ["leave_one_out", "cross_fitted", "pooled"])
def test_a_shift_of_all_rewards_changes_no_advantage(prior, form):
    """Nor the choice of K, step after step."""
    plain, shifted = (GradientWeightedBaseline(form, prior) for _ in range(2))
    for seed in range(4):
        groups = draw(seed)
        moved = make(groups.rewards - 1, groups.lengths, groups.reward_weights)
        torch.testing.assert_close(shifted(moved), plain(groups), rtol=0, atol=1e-6)
        plain.learn(groups)
        shifted.learn(moved)
    assert plain.second_moments.argmin() == shifted.second_moments.argmin()


@pytest.mark.parametrize("prior", PRIORS)
def test_a_resumed_run_goes_on_as_it_would_have(prior):
    through, before = (GradientWeightedBaseline(prior=prior) for _ in range(2))
    for seed in (0, 1):
        through.learn(draw(seed))
        before.learn(draw(seed))
    resumed = GradientWeightedBaseline(prior=prior)
    resumed.load_state_dict(before.state_dict())
    for seed in (2, 3):
        assert torch.equal(resumed(draw(seed)), through(draw(seed)))
        assert repr(resumed.state_dict()) == repr(through.state_dict())
        through.learn(draw(seed))
        resumed.learn(draw(seed))
    assert through.second_moments.any()


def test_a_prior_from_the_step_is_of_its_other_groups_whatever_the_micro_batch():
    groups, chosen = draw(), GradientWeightedBaseline(prior="step")
    whole = chosen(groups)
    for q in range(len(whole)):
        assert torch.equal(chosen(groups.of(torch.tensor([q])))[0], whole[q])
    rewards, weights = groups.rewards[:1], groups.reward_weights[:1]
    alone = Groups(rewards, weights, groups.lengths[:1], rewards, step_weights=weights)
    assert torch.equal(chosen(alone), GradientWeightedBaseline()(alone))


def test_k_is_what_would_have_served_earlier_steps():
    """Where all prompts are alike, as much of the others as there is; where each is its own, as little."""
    generator, chances = torch.Generator().manual_seed(0), torch.tensor([[0.0], [1.0]]).repeat(8, 1)
    for share, expected in ((torch.full((16, 1), 0.5), 64.0), (0.02 + 0.96 * chances, 1.0)):
        chosen = GradientWeightedBaseline(prior="past")
        for _ in range(20):
            rewards = (torch.rand(16, G, generator=generator) < share).float()
            chosen.learn(Groups(rewards, (10 - 9 * rewards).double(), torch.ones(16, G), rewards))
        assert chosen.pseudo_counts[int(chosen.second_moments.argmin())] == expected


@pytest.mark.parametrize("rewards", [(0, 1), (-1, 0), (-1, 1)], ids=str)
@pytest.mark.parametrize(("share", "bound"), [(0.5, 1.2), (0.9, 1.2), (0.97, 1.35)])
@pytest.mark.parametrize("ratio", [1, 10, 50])
def test_it_comes_near_the_optimum_where_the_paper_s_estimate_does_not(rewards, share, bound, ratio):
    """Second moments over those of ``E[wR]/E[w]``, wrong responses having ``ratio`` times the weight of right ones."""
    generator, (wrong, right) = torch.Generator().manual_seed(0), rewards
    paper, chosen = GradientWeightedBaseline(), GradientWeightedBaseline(prior="past")
    optimum = (share * right + (1 - share) * ratio * wrong) / (share + (1 - share) * ratio)
    moments = torch.zeros(3, dtype=torch.float64)
    for step in range(120):
        drawn = torch.rand(16, G, generator=generator) < share
        found = torch.where(drawn, float(right), float(wrong))
        groups = Groups(found, torch.where(drawn, 1.0, float(ratio)).double(), torch.ones(16, G), found)
        if step >= 20:
            for k, advantages in enumerate((found - optimum, chosen(groups), paper(groups))):
                moments[k] += (advantages.double().square() * groups.reward_weights).mean()
        chosen.learn(groups)
    assert moments[1] <= bound * moments[0]
    if ratio == 50 and share > 0.5:
        assert moments[2] > 2 * moments[0]


@pytest.mark.parametrize(
    ("name", "settings", "prior"),
    [
        ("adaptive", {}, "past"),
        ("adaptive", {"pseudo_counts": [0.0, 4.0]}, "past"),
        ("history", {"discount": 0.5}, "history"),
        ("shrinkage", {"weighted": True}, "step"),
    ],
)
def test_former_names_go_on_working_and_say_what_they_are_now(name, settings, prior):
    chosen = baseline(name, **settings)
    assert chosen.source == prior
    assert f"baseline.prior={prior}" in chosen.warning
    assert baseline("gradient_weighted").warning == baseline("shrinkage").warning == ""
    assert baseline("history", weighted=False).needs_norms is False
