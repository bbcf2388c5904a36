"""The baseline that remembers, on visits made by hand."""

import pytest
import torch
from baseline_steps import baseline, make


def visit(rewards, weights=None, problem=7):
    """One group of two responses to a problem."""
    groups = make(torch.tensor([rewards], dtype=torch.float32), torch.ones(1, 2, dtype=torch.int64))
    weights = groups.reward_weights if weights is None else torch.tensor([weights], dtype=torch.float64)
    return type(groups)(groups.rewards, weights, groups.lengths, groups.rewards, problems=torch.tensor([problem]))


def baselines(chosen, groups):
    return (groups.rewards - chosen(groups))[0].tolist()


@pytest.mark.parametrize(("discount", "expected"), [(0.0, (0, 1)), (0.5, (1 / 2, 1)), (1.0, (2 / 3, 1))])
def test_earlier_responses_are_others_that_count_less(discount, expected):
    chosen = baseline("history", discount=discount)
    chosen.learn(visit([1, 1]))
    assert baselines(chosen, visit([1, 0])) == pytest.approx(expected)


def test_two_visits_ago_counts_twice_less():
    chosen = baseline("history", discount=0.5)
    chosen.learn(visit([1, 1]))
    chosen.learn(visit([0, 0]))
    # 0.5 of two zeros and 0.25 of two ones, beside the other response
    assert baselines(chosen, visit([0, 0])) == pytest.approx([0.5 / 2.5] * 2)


@pytest.mark.parametrize(("weighted", "expected"), [(True, (3 + 0) / (4 + 4)), (False, 1 / 3)])
def test_weights_are_the_norms_or_one(weighted, expected):
    chosen = baseline("history", discount=1.0, weighted=weighted)
    chosen.learn(visit([1, 0], [3, 1]))
    assert baselines(chosen, visit([1, 0], [2, 4]))[0] == pytest.approx(expected)
    assert chosen.needs_norms is weighted


def test_other_problems_have_no_part_in_it():
    chosen = baseline("history")
    chosen.learn(visit([1, 1], problem=8))
    assert baselines(chosen, visit([1, 0])) == [0, 1]


def test_weights_of_zero_are_no_history():
    """The plain mean of the others is then over them alone."""
    chosen = baseline("history")
    chosen.learn(visit([0, 0], [0, 0]))
    assert baselines(chosen, visit([1, 1], [0, 0])) == [1, 1]


def test_equal_rewards_are_news_to_a_history():
    chosen, right = baseline("history"), visit([1, 1])
    assert chosen.live(right).all()
    chosen.learn(visit([0, 0]))
    assert (chosen(right) > 0.5).all()


def test_a_resumed_run_remembers():
    chosen, again = baseline("history"), baseline("history")
    again.load_state_dict(chosen.state_dict())
    assert again.sums == {}
    for problem in (2**48 - 1, 0):
        chosen.learn(visit([1, 0], [3, 1], problem))
    again.load_state_dict(chosen.state_dict())
    for problem in (2**48 - 1, 0):
        now = visit([0, 0], [1, 2], problem)
        assert torch.equal(again(now), chosen(now))
        assert not torch.equal(again(now), baseline("history")(now))
