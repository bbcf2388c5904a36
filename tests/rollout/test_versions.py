"""Of which weights tokens are: what servers say of it, and how old it makes a batch."""

import pytest

from oblr.batch.types import Rollout, RolloutBatch
from oblr.errors import EngineDiedError
from oblr.problem import Completion, Problem
from oblr.rollout.versions import check_versions, mean_age, spans


def told(*versions):
    return [{"version": version, "start": start, "end": end} for version, start, end in versions]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (told(("3", 0, 5)), ((3, 5),)),
        (told(("3", 0, 2), ("4", 2, 5)), ((3, 2), (4, 3))),
        (told(("9", 0, 1), ("10", 1, 4), ("12", 4, 5)), ((9, 1), (10, 3), (12, 1))),
    ],
)
def test_versions_are_read_with_the_tokens_that_they_have(said, found):
    assert spans(said, 5) == found


@pytest.mark.parametrize(
    "said",
    [
        [],
        None,
        told(("3", 0, 4)),
        told(("3", 0, 6)),
        told(("3", 1, 5)),
        told(("3", 0, 2), ("4", 3, 5)),
        told(("3", 0, 3), ("4", 2, 5)),
        told(("3", 0, 0), ("4", 0, 5)),
        told(("3", 0, 6), ("4", 6, 5)),
        told(("4", 0, 2), ("3", 2, 5)),
        told(("3", 0, 2), ("3", 2, 5)),
        told(("default", 0, 5)),
        told((None, 0, 5)),
        [{"version": "3", "start": 0}],
    ],
)
def test_what_does_not_cover_a_response_or_goes_back_is_nonsense(said):
    with pytest.raises((LookupError, TypeError, ValueError)):
        spans(said, 5)


def response(*versions):
    count = sum(tokens for _, tokens in versions)
    return Completion([1] * count, [-1.0] * count, True, versions)


def test_tokens_are_of_weights_that_were_sent_and_not_too_old():
    groups = [[response((3, 1)), response((3, 2), (5, 1))], [response((4, 7))], [Completion([1], [-1.0], True)]]
    check_versions(groups, 3, 5)
    for bounds, version, expected in (((4, 5), 3, "4 to 5"), ((3, 4), 5, "3 to 4"), ((5, 5), 3, "5")):
        with pytest.raises(EngineDiedError, match=f"tokens of version {version}, not {expected}$"):
            check_versions(groups, *bounds)


def test_the_age_is_a_mean_over_tokens():
    def batch(*completions):
        rollouts = [Rollout(Problem("p", "?", "1"), [1], one, "", 0.0) for one in completions]
        return RolloutBatch(rollouts, len(completions), weight_version=4)

    assert mean_age(batch(response((3, 1), (5, 3)), response((4, 4))), 5) == (2 * 1 + 1 * 4) / 8
    untold = Completion([1] * 7, [-1.0] * 7, True)
    for newest in (4, 5, 11):  # of one version it is that of the batch, to the last bit
        for first in (response((4, 7)), untold):
            assert mean_age(batch(first, response((4, 3))), newest) == newest - 4
