"""What n tries at one problem say of k tries: the chance that one is right, and what a majority vote scores."""

import math
from collections.abc import Sequence

import numpy as np


def pass_at(k: int, n: int, right: int) -> float:
    """Chance that k of the n tries, drawn without replacement, hold a right one: ``1 − C(n−c, k)/C(n, k)``.

    Unbiased for the chance that k new tries do (Chen et al. 2021, arXiv 2107.03374). 1 ≤ k ≤ n.
    """
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def majority_at(k: int, answers: Sequence[str | None], rewards: Sequence[float]) -> float:
    """Expected reward of a majority vote among k of the tries, drawn without replacement; 1 ≤ k ≤ len(answers).

    Each try votes for its answer, one without an answer (None) for nothing. Of the answers with most votes one is drawn
    evenly, and scores the mean reward of all tries that gave it; where nothing has a vote the score is 0. The
    expectation over draws and ties is exact.
    """
    given: dict[str, list[float]] = {}
    for answer, reward in zip(answers, rewards, strict=True):
        if answer is not None:
            given.setdefault(answer, []).append(reward)
    silent = len(answers) - sum(len(group) for group in given.values())
    expected = 0.0
    for most in range(1, min(k, max(map(len, given.values()), default=0)) + 1):
        # By votes so far and answers with `most` votes: the ways to draw them, and the sum of those answers' rewards
        # over these ways.
        ways, sums = np.zeros((2, k + 1, k // most + 1))
        ways[0, 0] = 1.0
        for group in given.values():
            before = ways, sums
            ways, sums = np.zeros_like(ways), np.zeros_like(sums)
            for votes in range(min(most, len(group), k) + 1):
                ties = int(votes == most)
                for table, old in zip((ways, sums), before, strict=True):
                    table[votes:, ties:] += math.comb(len(group), votes) * _corner(old, votes, ties)
                if ties:
                    reward = sum(group) / len(group)
                    sums[votes:, 1:] += math.comb(len(group), votes) * reward * _corner(before[0], votes, 1)
        completed = np.array([math.comb(silent, k - votes) for votes in range(k + 1)], dtype=float)
        expected += float((completed @ sums[:, 1:] / np.arange(1, k // most + 1)).sum())
    return expected / math.comb(len(answers), k)


def _corner(table: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Without the last so many."""
    return table[: table.shape[0] - rows, : table.shape[1] - columns]
