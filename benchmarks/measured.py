"""Write docs/measured.md: which code each committed result was measured at, as a table."""

import hashlib
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

The last column is a digest of the script that measured. Where it says *since changed*, the script of today measures in
another way, or with other targets, than the one that made the result.

| result | revision | date | script |
|---|---|---|---|
"""
#: What the page says of a result whose script is another by now.
CHANGED = "since changed"


def revisions() -> Iterator[tuple[str, str]]:
    """(name, revision) of every committed result; where parts were measured later, one for each revision."""
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        if not path.stem.endswith("-quick"):
            result = json.loads(path.read_text())
            parts = (figure.get("revision", result["revision"]) for figure in result["figures"])
            yield from ((path.stem, revision) for revision in dict.fromkeys([result["revision"], *parts]))


def row(name: str, revision: str) -> str:
    """Without what only a checkout tells."""
    commit, changes, _ = revision.partition("+changes")
    return f"| [{name}](../benchmarks/results/{name}.json) | {commit[:10]}{changes} |"


def script(name: str) -> str:
    """The script that made a result, as a path in the repository."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["command"][1]


def digest(source: bytes) -> str:
    """Eight digits that tell one form of a script from another."""
    return hashlib.sha256(source).hexdigest()[:8]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def _measured_by(name: str, revision: str) -> str:
    """Digest of the script as it was; what had not been committed then came with the result."""
    commit, changes, _ = revision.partition("+changes")
    if changes:
        commit = _git("log", "-1", "--format=%H", "--", f"benchmarks/results/{name}.json").decode().strip()
    return digest(_git("show", f"{commit}:{script(name)}"))


def main() -> None:
    rows = []
    for name, revision in revisions():
        date = _git("show", "-s", "--format=%cs", revision.partition("+")[0]).decode().strip()
        then = _measured_by(name, revision)
        changed = "" if then == digest((ROOT / script(name)).read_bytes()) else f", {CHANGED}"
        rows.append(f"{row(name, revision)} {date} | {then}{changed} |\n")
    PAGE.write_text(HEAD + "".join(rows))


if __name__ == "__main__":
    main()
