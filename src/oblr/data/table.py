"""Problems from the rows of a table."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oblr.data.prompts import PromptFormat
from oblr.data.rows import read_rows
from oblr.errors import SettingError
from oblr.types import Problem


class TableProblems:
    """One problem a row, read and checked whole.

    A problem's metadata are the row's columns, the ``columns`` besides these three under their new names, and
    ``question``, which the prompt was made of.

    Args:
        path, name, split, root: as for :func:`~oblr.data.rows.read_rows`.
        columns: which column is the ``prompt`` (text), the ``answer`` (text, a number, or a list of several answers)
            and the ``id``, and any others that a reward knows under another name. Without an ``id``, the column of
            that name is taken, if there is one, and else the number of the row.
        answer_after: the final answer is what follows the last of these in the answer column (GSM8K: ``####``).
        prompt: forms the prompt of the question.

    Raises:
        SettingError: what :func:`~oblr.data.rows.read_rows` refuses; a row without one of the columns, with an empty
            prompt or answer, or with the id of another.
    """

    notes: Sequence[str] = ()

    def __init__(
        self,
        path: str,
        name: str | None = None,
        split: str = "train",
        columns: Mapping[str, str | None] | None = None,
        answer_after: str = "",
        prompt: PromptFormat | None = None,
        root: str | None = None,
    ):
        rows = read_rows(path, name, split, root)
        taken = {ours: theirs for ours, theirs in (columns or {}).items() if theirs is not None}
        taken = {"prompt": "problem", "answer": "answer"} | taken
        suffix, prompt = Path(path).suffix, prompt or PromptFormat()
        title = Path(path).stem if suffix else f"{Path(path).name}/{split}"
        self.problems: list[Problem] = []
        seen: dict[str, str] = {}
        for number, (row, place) in enumerate(zip(rows.records, rows.places, strict=True)):
            if missing := [theirs for theirs in taken.values() if theirs not in row]:
                raise SettingError(
                    "data.columns", f"{place} has no column {missing[0]!r}", f"name one of {sorted(map(str, row))}"
                )
            question, answer = _text(row[taken["prompt"]]), _text(row[taken["answer"]], several=True)
            if answer_after:
                answer = answer.rpartition(answer_after)[2].strip()
            for ours, value in (("prompt", question), ("answer", answer)):
                if not value:
                    raise SettingError(
                        "data.columns", f"{place} has no text in column {taken[ours]!r}", "mend or remove the row"
                    )
            key = str(row.get(taken.get("id", "id"), f"{title}/{number}"))
            if (first := seen.setdefault(key, place)) != place:
                raise SettingError("data.columns", f"{place} has the id {key!r} of {first}", "give each row its own")
            renamed = {ours: row[theirs] for ours, theirs in taken.items() if ours not in ("prompt", "answer", "id")}
            self.problems.append(Problem(key, prompt(question), answer, row | renamed | {"question": question}))

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Problem:
        return self.problems[index]

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)


def _text(value: Any, several: bool = False) -> str:
    """What a cell says; "" where it says nothing that can be a prompt or an answer."""
    if several and isinstance(value, list):
        return ", ".join(_text(one) for one in value)
    return str(value).strip() if isinstance(value, str | int | float) else ""
