"""The committed results of benchmarks and studies; ``python benchmarks/measured.py`` writes what pages say of them.

That is docs/measured.md, which says which code each was measured at, and what the cog blocks of README and pages print
(``quoted.py``). With ``--check`` it writes nothing, and shows what pages lack of the results.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cogapp import Cog

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "studies")
PAGE = ROOT / "docs" / "measured.md"
HEAD = """# Measured at

Which commit each result in `benchmarks/results` and `studies/results` was measured at. Code has changed since: a result
that is older than what it measures says what was true then. `git log REVISION.. -- src callbacks` tells what has
changed; `make bench` and `make studies` measure all of it again; `python benchmarks/measured.py` writes this page.

The last column is a digest of the script that measured. Where it says *since changed*, the script of today measures in
another way, or with other targets, than the one that made the result, or lies elsewhere.

| result | revision | date | script |
|---|---|---|---|
"""
#: What the page says of a result whose script is another by now.
CHANGED = "since changed"


def files() -> dict[str, Path]:
    """The file of each committed result, by its name."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder / "results").glob("*.json"))]
    return {path.stem: path for path in found if not path.stem.endswith("-quick")}


def results(name: str) -> dict[str, dict[str, Any]]:
    """What a committed result says, by the figures' names."""
    return {figure["name"]: figure for figure in json.loads(files()[name].read_text())["figures"]}


def revisions() -> Iterator[tuple[Path, str]]:
    """File and revision of every committed result; where parts were measured later, one for each revision."""
    for path in files().values():
        result = json.loads(path.read_text())
        figures = [result["revision"], *(figure.get("revision", result["revision"]) for figure in result["figures"])]
        parts = [part["revision"] for part in result.get("parts", []) if "revision" in part]  # of a report put together
        yield from ((path, revision) for revision in dict.fromkeys(parts or figures))


def row(path: Path, revision: str) -> str:
    """Without what only a checkout tells."""
    commit, changes, _ = revision.partition("+changes")
    return f"| [{path.stem}](../{path.relative_to(ROOT)}) | {commit[:10]}{changes} |"


def script(path: Path) -> str:
    """The script that made a result, as a path in the repository of then."""
    return json.loads(path.read_text())["command"][1]


def today(path: Path) -> Path:
    """That script, which may have moved with its result."""
    then = ROOT / script(path)
    return then if then.exists() else path.parent.parent / then.name


def digest(source: bytes) -> str:
    """Eight digits that tell one form of a script from another."""
    return hashlib.sha256(source).hexdigest()[:8]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def _measured_by(path: Path, revision: str) -> str:
    """Digest of the script as it was; what had not been committed then came with the result."""
    commit, changes, _ = revision.partition("+changes")
    if changes:  # the commit that wrote the result first, and not one that moved it or left details out
        log = ("log", "--follow", f"-S{revision}", "--format=%H", "--", str(path.relative_to(ROOT)))
        commit = _git(*log).decode().split()[-1]
    return digest(_git("show", f"{commit}:{script(path)}"))


def cog(*options: str) -> int:
    """Run the blocks of README and pages; the status says whether all went well."""
    setting = ("--verbosity=1", "-P", "-p", "from quoted import *")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return Cog().main(["cog", *setting, *options, *map(str, pages)])


def main() -> None:
    rows = []
    for path, revision in revisions():
        date = _git("show", "-s", "--format=%cs", revision.partition("+")[0]).decode().strip()
        then = _measured_by(path, revision)
        changed = "" if then == digest(today(path).read_bytes()) else f", {CHANGED}"
        rows.append(f"{row(path, revision)} {date} | {then}{changed} |\n")
    PAGE.write_text(HEAD + "".join(rows))
    if status := cog("-r"):
        sys.exit(status)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(cog("--check", "--diff"))
    main()
