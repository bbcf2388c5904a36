"""Procedural problems from `reasoning-gym`: endless, checkable, and no download."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import reasoning_gym

from oblr.data.prompts import PromptFormat
from oblr.errors import SettingError
from oblr.types import Problem


class ReasoningGymProblems:
    """A fixed-size, indexable stream of problems of one `reasoning-gym` task; indices past its end begin it again.

    Args:
        task: name in reasoning-gym's registry, e.g. ``chain_sum``.
        size: number of problems.
        seed: streams of different seeds share no generator state. (reasoning-gym itself seeds item ``i`` with
            ``seed + i``, so that neighbouring seeds would repeat each other's problems shifted by one.)
        template: the question; ``{question}``, the task's own, and every field of its metadata can be used.
        params: the task's own settings.
        prompt: forms the prompt of the question.

    Raises:
        SettingError: unknown task, unknown or invalid ``params``, or a template that names a missing field.
    """

    notes: Sequence[str] = ()

    def __init__(
        self,
        task: str,
        size: int,
        seed: int,
        template: str = "{question}",
        params: dict[str, Any] | None = None,
        prompt: PromptFormat | None = None,
    ):
        self.task, self.size, self.template, self.prompt = task, size, template, prompt or PromptFormat()
        try:
            self.dataset = reasoning_gym.create_dataset(
                task, size=size, seed=random.Random(seed).getrandbits(48), **(params or {})
            )
        except (ValueError, TypeError, AssertionError) as error:
            raise SettingError(
                "data.task", f"reasoning-gym cannot make {task!r}: {error}", "see its gallery for tasks and settings"
            ) from error
        try:
            self[0]
        except KeyError as error:
            raise SettingError(
                "data.template", f"no field {error} in {task!r}", f"use one of {self._fields(self.dataset[0])}"
            ) from error

    @staticmethod
    def _fields(entry: dict[str, Any]) -> list[str]:
        return ["question", *entry["metadata"]]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Problem:
        index %= self.size
        entry = self.dataset[index]
        question = self.template.format(**{**entry["metadata"], "question": entry["question"]})
        return Problem(f"{self.task}/{index}", self.prompt(question), entry["answer"], entry)

    def __iter__(self) -> Iterator[Problem]:
        return (self[index] for index in range(self.size))
