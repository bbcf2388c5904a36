"""Rewards of tests that look at when something is scored; without imports that take seconds in each process."""

import time
from pathlib import Path


def one(problem, text, completion):
    return 1.0


class Gated:
    """Waits until there is a file ``gate``."""

    key = None

    def __init__(self, gate: Path):
        self.gate = gate

    def __call__(self, problem, text, completion):
        while not self.gate.exists():
            time.sleep(0.01)
        return 1.0


def of_some(problem, text, completion):
    """Of one problem in three it differs from response to response; no other is ever solved."""
    return float(completion.token_ids[0] % 2) if solvable(problem.id) else 0.0


def solvable(name: str) -> bool:
    return sum(map(ord, name)) % 3 == 0
