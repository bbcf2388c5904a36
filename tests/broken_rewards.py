"""Rewards that go wrong on real responses only, as a user's own might."""


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
