"""Rewards as users write them, right and wrong, in a file that the processes which score load quickly."""

from oblr.rewards.answer import ExactReward


class AnyText(ExactReward):
    def correct(self, problem, answer):
        return bool(answer)


class AnyNumber(ExactReward):
    def correct(self, problem, answer):
        return answer.isdigit()


class NoneIsRight(ExactReward):
    def correct(self, problem, answer):
        return answer == problem.answer or answer == "None"


def ends_with(problem, text, completion):
    return {"right": float(text.strip().endswith(problem.answer)), "ended": 0.1 * completion.finished}


def punishes(problem, text, completion):
    return 0.0 if text == problem.answer else -1.0


def short(problem, text, completion):
    return -len(completion.token_ids)


def runs_tests(problem, text, completion):
    return float(problem.answer.startswith("assert") and text.startswith("def "))


def first_word_number(problem, text, completion):
    return float(text.split()[0]) == float(problem.answer)


def leaves(problem, text, completion):
    raise SystemExit(3)
