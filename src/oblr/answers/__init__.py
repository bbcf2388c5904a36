"""Answers to mathematical problems: where a response states its own, and whether two are the same.

``docs/answers.md`` says in full what that means. Nothing of what is read is run, and nothing is simplified, so nothing
can hang. The parts are loaded when they are needed.
"""


def extract(response: str) -> str | None:
    """The final answer that a response states: in a box, in a tag, after a marker or in its conclusion; else None."""
    from oblr.answers.statements import final_answer

    return final_answer(response)


def same(answer: str, gold: str) -> bool:
    """Whether two answers, in words or LaTeX, are the same number, expression, set, interval, equation and so on."""
    from oblr.answers import comparing, reading

    return comparing.same(reading.read(gold), reading.read(answer), comparing.Rules())
