"""A user's reward that evaluates what a response says, in a module that imports nothing."""


def runs_it(problem, text, completion):
    eval(text.removeprefix("Answer: "))
    return float(text == f"Answer: {problem.answer}")
