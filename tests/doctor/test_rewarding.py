from dataclasses import replace

import pytest
from doctored import responses, run

from oblr.doctor.rewarding import dead_groups, odd_reward, paid_for_nothing

pytestmark = pytest.mark.usefixtures("whole")

HEALTHY = run()


def paid(reward):
    return responses(HEALTHY, lambda one, step, place: replace(one, reward=reward) if place == 9 else one, only=[17])


def test_one_reward_on_another_scale():
    found = odd_reward(paid(100.0))
    assert found is not None
    assert (found.step, found.response) == (17, 9)
    assert "100" in found.said
    assert odd_reward(paid(-100.0)) is not None


def test_rewards_on_their_scale():
    assert odd_reward(HEALTHY) is None
    assert odd_reward(paid(3.9)) is None


def test_rewards_that_never_differ_but_once():
    same = responses(HEALTHY, lambda one, step, place: replace(one, reward=0.0))
    assert odd_reward(same) is None
    assert (
        odd_reward(responses(same, lambda one, step, place: replace(one, reward=100.0 * (place == 1)), [3])) is not None
    )


def short(steps, reward):
    """In later steps every fourth response has two tokens."""

    def cut(one, step, place):
        return replace(one, length=2, reward=reward(one, place), text="") if step > 5 and place % 4 == 0 else one

    return responses(steps, cut)


def test_the_empty_answer_is_paid():
    found = paid_for_nothing(short(run(solved=lambda t: 0.5), lambda one, place: 1.0))
    assert found is not None
    assert found.kind == "illness"


def test_short_answers_that_are_paid_as_others_are():
    assert paid_for_nothing(HEALTHY) is None
    assert paid_for_nothing(short(HEALTHY, lambda one, place: one.reward)) is None
    assert paid_for_nothing(short(HEALTHY, lambda one, place: 0.0)) is None


def test_short_answers_that_are_always_right_where_all_are():
    easy = run(solved=lambda t: 0.97)
    assert paid_for_nothing(short(easy, lambda one, place: 1.0)) is None


def failed(share):
    return responses(HEALTHY, lambda one, step, place: replace(one, reward=0.0) if one.group < share * 16 else one)


def test_groups_that_all_fail():
    assert dead_groups(HEALTHY) is None
    assert dead_groups(failed(0.5)) is None
    found = dead_groups(failed(0.75))
    assert found is not None
    assert "75 %" in found.evidence


def test_groups_that_all_succeed_are_not_failed():
    assert dead_groups(run(solved=lambda t: 0.999)) is None
