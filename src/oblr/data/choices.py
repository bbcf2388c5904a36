"""Questions of multiple choice: what can be chosen stands below the question, and the answer is a letter."""

import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

from oblr.data.cells import cell, said
from oblr.errors import SettingError


def offered(
    row: Mapping[str, Any],
    question: str,
    answer: str,
    column: str,
    choices: Sequence[str],
    labels: str | None,
    place: str,
) -> tuple[str, str]:
    """The question with its choices as ``A. …``, a line each, and the letter of the right one.

    Args:
        column: where the answer is from.
        choices: of multiple choice: one column with a list of them, whose answer is a label; or a column each, one of
            which is the answer's: their order is then drawn by the question, so that the right one has no place of its
            own.
        labels: the column with the list of labels; None: letters.

    Raises:
        SettingError: a row without a list of choices, with more than letters, or whose answer is none of them.
    """
    if len(choices) > 1:
        order = random.Random(question).sample(choices, len(choices))
        texts, names = [cell(row, path, place) for path in order], list(order)
        answer = column
    else:
        texts = cell(row, choices[0], place)
        names = list(string.ascii_uppercase) if labels is None else cell(row, labels, place)
    if not isinstance(texts, list) or not isinstance(names, list) or not 2 <= len(texts) <= 26:
        raise SettingError("choices", f"{place} has no list of 2 to 26 choices", "name the column that has it")
    if labels is not None and len(names) != len(texts):
        raise SettingError("labels", f"{place} has not as many labels as choices", "mend or remove the row")
    if answer not in (known := [str(name) for name in names[: len(texts)]]):
        raise SettingError("data.columns", f"{place} has the answer {answer!r}, none of {known}", "mend the row")
    path = choices[0] if len(choices) == 1 else "choices"
    lines = [
        f"{letter}. {said(text, path, place)}" for letter, text in zip(string.ascii_uppercase, texts, strict=False)
    ]
    return "\n".join([question, *lines]), string.ascii_uppercase[known.index(answer)]
