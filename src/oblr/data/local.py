"""Problems from a local JSONL file."""

import json
from pathlib import Path

from oblr.errors import SettingError
from oblr.types import Problem


class JSONLProblems:
    """One JSON object a line, read and checked whole.

    Args:
        path: the file, UTF-8.
        prompt_column, answer_column: fields with the question and its final answer (strings or numbers).
        template: prompt text; ``{prompt}`` stands for the question.

    Raises:
        SettingError: no such file, an empty one, or a line that is not a JSON object with both fields.
    """

    def __init__(
        self, path: str, prompt_column: str = "problem", answer_column: str = "answer", template: str = "{prompt}"
    ):
        self.problems: list[Problem] = []
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError("data.path", f"cannot read {path}: {error}", "give a UTF-8 JSONL file") from error
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                question, answer = row[prompt_column], row[answer_column]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise SettingError(
                    "data.path",
                    f"{path} line {number} is not a JSON object with {prompt_column!r} and {answer_column!r}",
                    "mend the line, or set data.prompt_column and data.answer_column",
                ) from error
            prompt = template.replace("{prompt}", str(question))
            self.problems.append(Problem(str(row.get("id", number)), prompt, str(answer), row))
        if not self.problems:
            raise SettingError("data.path", f"{path} has no problems", "give a file with one JSON object a line")

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Problem:
        return self.problems[index]
