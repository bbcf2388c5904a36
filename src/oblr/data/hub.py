"""Problems from the Hugging Face Hub."""

from datasets import load_dataset

from oblr.errors import SettingError
from oblr.types import Problem


class HubProblems:
    """One split of a Hub data set.

    Args:
        path, name, split: as for ``datasets.load_dataset``.
        prompt_column, answer_column: columns with the question and its answer.
        answer_after: the final answer is what follows the last of these in the answer column (GSM8K: ``####``).
        template: prompt text; ``{prompt}`` stands for the question.

    Raises:
        SettingError: the data set cannot be had, or lacks a column.
    """

    def __init__(
        self,
        path: str,
        split: str,
        prompt_column: str,
        answer_column: str,
        name: str | None = None,
        answer_after: str = "",
        template: str = "{prompt}",
    ):
        try:
            rows = load_dataset(path, name, split=split)
        except Exception as error:  # the library lets connection, file and value errors of many packages through
            raise SettingError(
                "data.path", f"the hub does not give out {path}/{name} [{split}]", "check name and network"
            ) from error
        if missing := {prompt_column, answer_column} - set(rows.column_names):
            raise SettingError(
                "data.path", f"{path} has no column {sorted(missing)}", f"its columns are {rows.column_names}"
            )
        self.path, self.split, self.rows = path, split, rows
        self.prompt_column, self.answer_column = prompt_column, answer_column
        self.answer_after, self.template = answer_after, template

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Problem:
        row = self.rows[index]
        answer = str(row[self.answer_column])
        if self.answer_after:
            answer = answer.rpartition(self.answer_after)[2]
        prompt = self.template.replace("{prompt}", str(row[self.prompt_column]))
        return Problem(f"{self.path}/{self.split}/{index}", prompt, answer.strip(), row)
