"""Problems from the rows of a table."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from oblr.data.cells import cell, said
from oblr.data.chats import chat
from oblr.data.choices import offered
from oblr.data.formats import title
from oblr.data.prompts import PromptFormat
from oblr.data.rows import read_rows
from oblr.errors import SettingError
from oblr.kinds import Count
from oblr.problem import Problem


class TableProblems:
    """One problem a row, read and checked whole.

    A problem's metadata are the row's columns, the ``columns`` besides these three under their new names, and
    ``question``, which the prompt was made of.

    Args:
        path, name, split, root, limit_mib: as for :func:`~oblr.data.rows.read_rows`.
        columns: which column is the ``prompt`` (text, or a chat), the ``answer`` (text, a number, or a list of several
            answers) and the ``id``, and any others that a reward knows under another name; what is below a column by
            its path, ``messages.0.content``. Without an ``id``, the column of that name is taken, if there is one, and
            else the number of the row.
        answer_after: the final answer is what follows the last of these in the answer column (GSM8K: ``####``).
        prompt: what becomes of the question.
        choices, labels: as for :func:`~oblr.data.choices.offered`.

    Raises:
        SettingError: what :func:`~oblr.data.rows.read_rows` refuses; a row without one of the columns, with nothing
            to read in prompt, answer or id, or with the id of another; a chat that the prompt has no place for.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        split: str = "train",
        columns: Mapping[str, str | None] | None = None,
        answer_after: str = "",
        prompt: PromptFormat | None = None,
        root: str | None = None,
        choices: Sequence[str] = (),
        labels: str | None = None,
        limit_mib: Count | None = None,
    ):
        rows = read_rows(path, name, split, root, limit_mib)
        taken = {ours: theirs for ours, theirs in (columns or {}).items() if theirs is not None}
        taken = {"prompt": "problem", "answer": "answer"} | taken
        prompt = prompt or PromptFormat()
        name_of_rows = title(path) or f"{Path(path).name}/{split}"
        self.problems: list[Problem] = []
        seen: dict[str, str] = {}
        short: list[tuple[str, str]] = []  # answers in single precision, and as those print
        for number, (row, place) in enumerate(zip(rows.records, rows.places, strict=True)):
            found = {ours: cell(row, theirs, place) for ours, theirs in taken.items()}
            whole = found.pop("answer")
            answer = said(whole, taken["answer"], place, several=True)
            if isinstance(whole, str | float) and answer != str(whole).strip():
                short.append((str(whole), answer))
            if answer_after:
                answer = said(answer.rpartition(answer_after)[2], taken["answer"], place)
            asked = found.pop("prompt")
            question, turns = (
                chat(asked, taken["prompt"], place)
                if isinstance(asked, list)
                else (said(asked, taken["prompt"], place), [])
            )
            if choices:
                question, answer = offered(row, question, answer, taken["answer"], choices, labels, place)
            if "id" in taken or "id" in row:
                key = said(found.pop("id", row.get("id")), taken.get("id", "id"), place)
            else:
                key = f"{name_of_rows}/{number}"
            if (first := seen.setdefault(key, place)) != place:
                raise SettingError("data.columns", f"{place} has the id {key!r} of {first}", "give each row its own")
            try:
                text = prompt(question, turns)
            except SettingError as error:
                raise SettingError(error.setting, f"{place}: {error.problem}", error.fix) from error
            self.problems.append(Problem(key, text, answer, row | found | {"question": question}))
        self.notes = [
            f"{name_of_rows}: {len(short):,} of {len(self.problems):,} answers are read as numbers of "
            f"single precision: {before} as {after}, for one"
            for before, after in short[:1]
        ]

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Problem:
        return self.problems[index]

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)
