"""Published sets of problems: from a folder of files, or from the Hub."""

from collections.abc import Callable
from pathlib import Path

from oblr.data.prompts import PromptFormat
from oblr.data.table import TableProblems
from oblr.errors import SettingError


def published(
    file: str, directory: str | None, hub: Callable[..., TableProblems], prompt: PromptFormat, optional: bool = False
) -> TableProblems:
    """The problems in a directory's ``file``, columns ``id``, ``problem`` and ``answer``; without directory the Hub's.

    Args:
        hub: makes the latter of a ``prompt``.
        optional: the Hub's too where the directory has no such file.

    Raises:
        SettingError: no such directory, or no such file in it; or the source's own.
    """
    if directory is None:
        return hub(prompt=prompt)
    path = Path(directory, file)
    if not path.parent.is_dir():
        raise SettingError("benchmarks_dir", f"there is no folder {directory}", "give one, or leave it out for the Hub")
    if path.exists():
        return TableProblems(str(path), prompt=prompt)
    if optional:
        return hub(prompt=prompt)
    raise SettingError(
        "benchmarks_dir", f"{directory} has no {file}", "add it, or leave benchmarks_dir out for the Hub"
    )
