"""Responses that are scored while others are still being made."""

import logging
import time
from pathlib import Path

import pytest
from test_pool import ENDED, Counted, obedient

from oblr.errors import SettingError
from oblr.problem import Completion, Problem
from oblr.rewards.pool import RewardPool, cores
from oblr.rewards.verdicts import Verdict


class Marking:
    """Leaves a file with the name of each response that it scores."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, problem, text, completion):
        Path(self.folder, text).touch()
        return float(len(text))


def said(number, texts):
    """A completion, and how it is read: its token is a place among texts."""
    return Completion([number], [0.0], True), lambda place, one: (
        Problem(str(place), "?", "1"),
        texts[one.token_ids[0]],
        one,
    )


def streamed(pool, texts, told):
    """Verdicts of all texts, of which (place, number of text) have been ``told`` before, in that order."""
    read = said(0, texts)[1]
    with pool.scoring(read) as scoring:
        for place, number in told:
            scoring.add(place, said(number, texts)[0])
        scored = scoring.scored([said(number, texts)[0] for number in range(len(texts))])
    assert [text for (_, text, _), _ in scored] == texts
    return [verdict for _, verdict in scored]


@pytest.mark.parametrize(
    "told",
    [
        [],
        [(place, place) for place in reversed(range(9))],
        [(0, 1), (1, 0), (2, 3), (2, 2), (4, 4), (4, 4), (5, 8)],  # an engine that was started again, or says nonsense
    ],
    ids=["nothing", "backwards", "others"],
)
def test_verdicts_are_those_of_scoring_all_at_once(told, caplog):
    texts = ["give 1", "raise x", "give 2", "raise y", "parts 1 2", "give 1", "nan", "give x", "raise x"]
    found = []
    for stream in (False, True):
        caplog.clear()
        pool = RewardPool(obedient, workers=2, timeout=20)
        with caplog.at_level(logging.WARNING, "oblr.rewards.pool"):
            if stream:
                verdicts = streamed(pool, texts, told)
            else:
                problems = [Problem(str(place), "?", "1") for place in range(len(texts))]
                verdicts = pool.score(problems, texts, [ENDED] * len(texts))
        pool.close()
        said = [record.getMessage() for record in caplog.records]
        found.append((verdicts, pool.timeouts, pool.errors, said))
    assert found[0] == found[1]
    assert found[0][2] == 5


def test_what_has_ended_is_scored_before_the_rest_has(tmp_path):
    """By events: nothing more is said until the first has been scored."""
    pool, texts = RewardPool(Marking(str(tmp_path)), workers=1, level="limits"), ["first", "second"]
    with pool.scoring(said(0, texts)[1]) as scoring:
        scoring.add(0, said(0, texts)[0])
        end = time.monotonic() + 60
        while not (tmp_path / "first").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not (tmp_path / "second").exists()
        scored = scoring.scored([said(number, texts)[0] for number in range(2)])
    pool.close()
    assert [verdict for _, verdict in scored] == [Verdict(5.0, "scored"), Verdict(6.0, "scored")]


def test_what_has_been_scored_is_not_scored_again(tmp_path):
    file = tmp_path / "asked"
    pool, texts = RewardPool(Counted(str(file)), workers=1, level="limits"), ["Answer: 1", "so Answer: 1", "Answer: 2"]
    for _ in range(2):  # the second time all is remembered
        verdicts = streamed(pool, texts, [(0, 0), (1, 1), (2, 2), (1, 1)])
        assert [verdict.reward for verdict in verdicts] == [1.0, 1.0, 0.0]
    pool.close()
    assert file.read_text() == "xxx"


def test_what_is_left_in_the_middle_leaves_no_answers():
    pool = RewardPool(obedient, workers=1, timeout=60)
    texts = ["doze 0.5", "give 2", "give 3"]

    def interrupted():
        with pool.scoring(said(0, texts)[1]) as scoring:
            scoring.add(0, said(0, texts)[0])
            while not pool.busy:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not pool.slots
    assert [verdict.reward for verdict in streamed(pool, ["give 4", "give 5"], [(1, 1)])] == [4.0, 5.0]
    pool.close()


class Unconfined:
    """Runs what responses say."""

    def evaluates(self, problem):
        return "eval" if problem.id == "1" else ""

    def __call__(self, problem, text, completion):
        return 1.0


def test_a_reward_that_fails_meanwhile_says_so_in_the_end():
    pool, texts = RewardPool(Unconfined(), workers=1, level="limits"), ["a", "b", "c"]

    def failing():
        with pool.scoring(said(0, texts)[1]) as scoring:
            for place in range(3):
                scoring.add(place, said(place, texts)[0])
            while not scoring.running.done():
                time.sleep(0.01)
            for _ in range(100_000):  # nobody listens any more, and nobody waits for that
                scoring.add(0, said(0, texts)[0])
            scoring.scored([said(number, texts)[0] for number in range(3)])

    with pytest.raises(SettingError, match=r"^reward: .* on problem 1, "):
        failing()
    assert not pool.slots


def test_processes_are_as_many_as_cores_and_ranks_share_them(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    pool = RewardPool(obedient)
    assert (cores(), pool.workers) == (12, 12)
    pool.ranks = 5
    assert pool.workers == 2
    pool.ranks = 24
    assert pool.workers == 1
    assert RewardPool(obedient, workers=40).workers == 40
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(200)))
    assert RewardPool(obedient).workers == 32
