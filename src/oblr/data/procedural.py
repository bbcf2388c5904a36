"""Procedural problems from `reasoning-gym`: endless, checkable, and no download."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import reasoning_gym

from oblr.data.prompts import PromptFormat
from oblr.errors import SettingError
from oblr.kinds import Count, Seed
from oblr.problem import Problem

#: Bits of a task's seed: what no other stream meets, or what numpy takes, by which pool_matrix is drawn.
SEEDS = (48, 31)
#: So many problems take seconds of a task that makes all when it is made, and so many of one that numbers them then.
MANY, NUMBERED = 10_000, 10_000_000
#: Where tasks with several right answers keep one of them.
EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")


class ReasoningGymProblems:
    """A fixed-size, indexable stream of problems of one `reasoning-gym` task; indices past its end begin it again.

    Args:
        task: name in reasoning-gym's registry, e.g. ``chain_sum``.
        size: how many problems there are.
        seed: of the problems; streams of different seeds share no generator state. (reasoning-gym itself seeds item
            ``i`` with ``seed + i``, so that neighbouring seeds would repeat each other's problems shifted by one.)
        template: the question; ``{question}``, the task's own, and every field of its metadata can be used.
        params: the task's own settings.
        prompt: what becomes of the question.

    Raises:
        SettingError: unknown task, unknown or invalid ``params``, or a template that cannot be filled in; and, when it
            is asked for, a problem that the task cannot make.
    """

    notes: Sequence[str] = ()

    def __init__(
        self,
        task: str,
        size: Count,
        seed: Seed,
        template: str = "{question}",
        params: dict[str, Any] | None = None,
        prompt: PromptFormat | None = None,
    ):
        self.task, self.size, self.template, self.prompt = task, size, template, prompt or PromptFormat()
        draw = random.Random(seed)
        for bits in SEEDS:
            try:
                chosen = {"seed": draw.getrandbits(bits), **(params or {})}
                if size > MANY and size > (most := _most(task, chosen)):
                    raise SettingError(
                        "data.train.size",
                        f"{task!r} makes all of its {size:,} problems at once",
                        f"use {most:,} or fewer",
                    )
                self.dataset = reasoning_gym.create_dataset(task, size=size, **chosen)
                entry = self.dataset[0]
                break
            except SettingError:
                raise
            except Exception as error:  # its tasks raise what they like
                problem = error
        else:
            raise SettingError(
                "data.train.task",
                f"reasoning-gym cannot make {task!r}: {problem}",
                "see its gallery for tasks and settings",
            ) from problem
        try:
            self[0]
        except (LookupError, AttributeError, ValueError) as error:
            raise SettingError(
                "data.train.template",
                f"{template!r} cannot be filled in for {task!r}: {error!r}",
                f"use fields of {self._fields(entry)}, in braces",
            ) from error

    @staticmethod
    def _fields(entry: dict[str, Any]) -> list[str]:
        return ["question", *entry["metadata"]]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Problem:
        index %= self.size
        try:
            entry = self.dataset[index]
        except Exception as error:
            raise SettingError(
                "data.train.task",
                f"reasoning-gym cannot make problem {index} of {self.task!r}: {error!r}",
                "use another task",
            ) from error
        question = self.template.format(**{**entry["metadata"], "question": entry["question"]})
        return Problem(f"{self.task}/{index}", self.prompt(question), _answer(entry), entry)

    def __iter__(self) -> Iterator[Problem]:
        return (self[index] for index in range(self.size))


def _most(task: str, settings: dict[str, Any]) -> float:
    """How many problems a data set may have, by what those of 20 and of 40 keep."""
    some, more = (vars(reasoning_gym.create_dataset(task, size=size, **settings)) for size in (20, 40))
    grown = [
        value
        for name, value in more.items()
        if isinstance(value, list | tuple | dict) and len(value) != len(some.get(name) or ())
    ]
    numbers = all(isinstance(one, int) for value in grown for one in value)
    return math.inf if not grown else NUMBERED if numbers else MANY


def _answer(entry: dict[str, Any]) -> str:
    """The task's answer, or an example of several; "" where it names none, and its scorer alone knows."""
    known = (entry["answer"], *(entry["metadata"].get(name) for name in EXAMPLES))
    answer = next((one for one in known if one is not None), "")
    return answer if isinstance(answer, str) else json.dumps(answer)
