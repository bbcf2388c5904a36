"""Against all subsets."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oblr.metrics.tries import majority_at, pass_at

TRIES = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=7
)


@pytest.mark.parametrize(("n", "right"), [(1, 0), (1, 1), (4, 0), (5, 2), (6, 5), (7, 7)])
def test_pass_at(n, right):
    tries = [i < right for i in range(n)]
    for k in range(1, n + 1):
        subsets = list(combinations(tries, k))
        assert pass_at(k, n, right) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def vote(answers, rewards, members):
    """The expected reward of one vote, ties drawn evenly."""
    votes = Counter(answers[i] for i in members if answers[i] is not None)
    winners = [answer for answer in votes if votes[answer] == max(votes.values())]
    given = {w: [r for a, r in zip(answers, rewards, strict=True) if a == w] for w in winners}
    return sum(sum(given[w]) / len(given[w]) for w in winners) / len(winners) if winners else 0.0


@settings(deadline=None, derandomize=True)
@given(TRIES)
def test_majority_at(tries):
    answers, rewards = zip(*tries, strict=True)
    for k in range(1, len(tries) + 1):
        votes = [vote(answers, rewards, members) for members in combinations(range(len(tries)), k)]
        assert majority_at(k, answers, rewards) == pytest.approx(sum(votes) / len(votes), abs=1e-12)


def test_many_tries_and_no_answer():
    assert pass_at(64, 256, 1) == pytest.approx(64 / 256)
    assert majority_at(64, ["a"] * 129 + ["b"] * 127, [1.0] * 129 + [0.0] * 127) == pytest.approx(0.5, abs=0.1)
    assert majority_at(2, [None, None], [1.0, 1.0]) == 0.0
