"""Published sets of problems: from a folder of files, or from the Hub."""

from collections.abc import Callable
from pathlib import Path

from oblr.data.prompts import PromptFormat
from oblr.data.table import TableProblems
from oblr.errors import SettingError


def published(
    file: str,
    directory: str | None,
    hub: Callable[..., TableProblems],
    prompt: PromptFormat | None,
    optional: bool = False,
) -> TableProblems:
    """The problems in a directory's ``file``, columns ``id``, ``problem`` and ``answer``; without directory the Hub's.

    Args:
        file: name in the directory.
        directory: folder of published problems; None: the Hub.
        hub: makes the Hub's of a ``prompt``; with ``_partial_: true``.
        prompt: what becomes of a question; None: nothing.
        optional: whether the Hub's are taken where the directory has no such file.

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
