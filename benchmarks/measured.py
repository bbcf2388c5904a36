"""Write docs/measured.md: which code each committed result was measured at, as a table."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "measured.md"
HEAD = """# Measured at

Which commit each result in `benchmarks/results` was measured at. Code has changed since: a result that is older than
what it measures says what was true then. `git log REVISION.. -- src callbacks` tells what has changed;
`make bench` measures all of it again; `python benchmarks/measured.py` writes this page.

| result | revision | date |
|---|---|---|
"""


def revisions() -> Iterator[tuple[str, str]]:
    """(name, revision) of every committed result; where parts were measured later, one for each revision."""
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        if not path.stem.endswith("-quick"):
            result = json.loads(path.read_text())
            parts = (figure.get("revision", result["revision"]) for figure in result["figures"])
            yield from ((path.stem, revision) for revision in dict.fromkeys([result["revision"], *parts]))


def row(name: str, revision: str) -> str:
    """Without the date, which only a checkout tells."""
    commit, changes, _ = revision.partition("+changes")
    return f"| [{name}](../benchmarks/results/{name}.json) | {commit[:10]}{changes} |"


def main() -> None:
    rows = []
    for name, revision in revisions():
        show = ["git", "show", "-s", "--format=%cs", revision.partition("+")[0]]
        date = subprocess.run(show, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        rows.append(f"{row(name, revision)} {date} |\n")
    PAGE.write_text(HEAD + "".join(rows))


if __name__ == "__main__":
    main()
