"""What README and pages tell people to type, and the files that they show."""

import re
from collections.abc import Iterable
from pathlib import Path


def commands(pages: Iterable[Path], first: str) -> list[str]:
    """Each line of each block that begins like the pattern ``first``, without its comment, in the pages' order."""
    lines = []
    for page in pages:
        for block in re.findall(r"^```\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                lines += [part.strip() for part in re.split(r" # |\s+# |&&", line)[:: 1 if "&&" in line else 2]]
    return [line for line in lines if re.match(first, line)]


def code(page: Path) -> list[tuple[str, str]]:
    """Path and text of each file that the page shows: blocks whose first line is a comment with a path."""
    shown = re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [(name, text) for name, text in shown if name.endswith((".py", ".yaml"))]
