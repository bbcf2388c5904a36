"""What a command says that refuses what it was given."""

import re

from conftest import ROOT


def check(result, setting, *words):
    """One line that names the setting, has these words and points at a page; status 2."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert result.returncode == 2, result.stderr
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith(f"error: {setting}"), lines[0]
    for word in words:
        assert word in lines[0]
    (page,) = re.findall(r"; see (docs/\w+\.md)$", lines[0])
    assert (ROOT / page).is_file()
    assert result.stdout == ""
