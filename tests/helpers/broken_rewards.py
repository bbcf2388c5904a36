"""Rewards that go wrong, some on real responses only, as a user's own might."""

import os
import threading
import time


def raises_on_responses(problem, text, completion):
    if completion.token_ids:
        raise KeyError("no such field")
    return 0.0


def nan_on_responses(problem, text, completion):
    return float("nan") if completion.token_ids else 0.0


def raises(problem, text, completion):
    raise KeyError("no such field")


def infinite(problem, text, completion):
    return float("inf")


class Unsendable:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, problem, text, completion):
        return 0.0


unsendable = Unsendable()


def fails_when_wrong(problem, text, completion):
    """In training alone: the data module tries the problem's own answer."""
    if text == problem.answer:
        return 1.0
    if len(text) % 2:
        time.sleep(60)
    raise KeyError("no such field")


def brevity(problem, text, completion):
    """Nothing is broken in this one."""
    return -len(completion.token_ids) if completion.finished else -1000


def first_token(problem, text, completion):
    return completion.token_ids[0]


def leaves(problem, text, completion):
    """As a script that is used as a reward."""
    raise SystemExit(3)


def ends_its_process(problem, text, completion):
    os._exit(4)


def interrupts(problem, text, completion):
    raise KeyboardInterrupt
