"""Published sets of problems: from a folder of files, or from the Hub."""

from collections.abc import Callable
from pathlib import Path

from oblr.data.hub import HubProblems
from oblr.data.local import JSONLProblems
from oblr.errors import SettingError


def published(
    file: str, directory: str | None, hub: Callable[..., HubProblems], template: str, optional: bool = False
) -> HubProblems | JSONLProblems:
    """The problems in a directory's ``file``, columns ``id``, ``problem`` and ``answer``; without directory the Hub's.

    Args:
        hub: makes the latter of a ``template``.
        optional: the Hub's too where the directory has no such file.

    Raises:
        SettingError: no such directory, or no such file in it; or the source's own.
    """
    if directory is None:
        return hub(template=template)
    path = Path(directory, file)
    if not path.parent.is_dir():
        raise SettingError("benchmarks_dir", f"there is no folder {directory}", "give one, or leave it out for the Hub")
    if path.exists():
        return JSONLProblems(str(path), template=template)
    if optional:
        return hub(template=template)
    raise SettingError(
        "benchmarks_dir", f"{directory} has no {file}", "add it, or leave benchmarks_dir out for the Hub"
    )
