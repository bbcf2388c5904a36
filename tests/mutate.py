"""Plant plausible mistakes in the code, one at a time, and see which of them the tests notice.

    PYTHONPATH=benchmarks python tests/mutate.py [--room ROOM] [--sample N --seed 0] [--jobs 1]

`mutants.yaml` has the mistakes, each with the tests that could notice it. They are planted in a copy of the checkout,
in which these tests must pass without them. ``benchmarks/results/mutants.jsonl`` keeps what was found here: a second
call goes on where the first was stopped, and tries again what has changed since: the file, the mistake, or its tests.
When all have been tried, ``benchmarks/results/mutants.json`` tells how many were noticed, by room.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

import report
import warm
from mutants import TABLE, Mutant, TableError, load

from oblr.run.provenance import revision

RESULTS = Path("benchmarks", "results", "mutants.jsonl")
#: Share of the mistakes that must be noticed.
ENOUGH = 0.92
#: In the environment of every process of a trial, so that none outlives it: the folder of its copy.
MARK = "MUTANT_COPY"


def copy(root: Path, folder: Path) -> Path:
    """The files of the checkout that git does not ignore, as they lie there, in a repository of their own."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    there = [name for name in names if (root / name).is_file()]
    folder.mkdir()
    subprocess.run(["cp", "-p", "--parents", *there, folder], cwd=root, check=True)
    own = ["git", "-c", "user.name=mutants", "-c", "user.email=mutants", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "copy"]):
        subprocess.run([*own, *command], cwd=folder, check=True)
    return folder


def run(folder: Path, tests: Sequence[str], timeout: float | None = None) -> tuple[str, float]:
    """What fails in a copy, "" if nothing does, and the seconds that it takes."""
    path = filter(None, [str(folder / "src"), str(folder), os.environ.get("PYTHONPATH")])
    # A file that changes twice within a second must not be taken for what was compiled in between.
    own = {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1", MARK: str(folder)}
    pytest = str(Path(__file__).with_name("pytest_alone.py"))
    command = [pytest, *("-x", "-rfE", "-p", "no:cacheprovider", "-n", "0"), *tests]
    start = time.monotonic()
    try:
        ended = warm.run(command, folder, os.environ | own, timeout)
        status = ended.returncode
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ended.stdout + ended.stderr, flags=re.MULTILINE)
    except subprocess.TimeoutExpired:
        status, failed = -signal.SIGKILL, ["timeout"]
    finally:
        kill_remains(folder)
    return [*failed, f"status {status}"][0] if status else "", time.monotonic() - start


def kill_remains(folder: Path) -> None:
    """End whatever a trial in this copy has started, in whatever session it is."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def tried(root: Path, mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str, float]]:
    """Each with the test that noticed it, "" if none did, and the seconds that it took; in any order.

    Raises:
        TableError: a test fails without any mistake.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in conftest.py, but before torch is there
    warm.popen()  # before there are threads
    copies, locks, unmutated = SimpleQueue[Path](), defaultdict(Lock), dict[Sequence[str], float]()

    def trial(mutant: Mutant) -> tuple[Mutant, str, float]:
        folder, tests = copies.get(), mutant.tests
        with locks[tests]:
            if tests not in unmutated:
                failed, seconds = run(folder, tests)
                if failed:
                    raise TableError(f"{failed} fails without any mistake")
                unmutated[tests] = seconds
        file = folder / mutant.file
        good = file.read_text()
        file.write_text(good.replace(mutant.old, mutant.new))
        failed, seconds = run(folder, tests, timeout=60 + 4 * unmutated[tests])
        file.write_text(good)
        copies.put(folder)
        return mutant, failed, seconds

    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as name, ThreadPool(jobs) as pool:
        folders = [copy(root, Path(name, str(job))) for job in range(jobs)]
        for folder in folders:
            copies.put(folder)
        try:
            yield from pool.imap_unordered(trial, sorted(mutants, key=lambda mutant: mutant.tests))
        finally:
            for folder in folders:
                kill_remains(folder)


def summary(mutants: Sequence[Mutant], killed: dict[Mutant, bool]) -> Iterator[str]:
    """A table by room, what survived in full, and what was not tried."""
    yield f"{'room':12}{'mutants':>8}{'killed':>8}{'share':>8}"
    for room in [*dict.fromkeys(mutant.room for mutant in killed), "all"]:
        own = [killed[mutant] for mutant in killed if room in (mutant.room, "all")]
        yield f"{room:12}{len(own):8}{sum(own):8}{sum(own) / max(len(own), 1):8.0%}"
    for mutant in (mutant for mutant, noticed in killed.items() if not noticed):
        yield f"\nsurvived: {mutant.room}, {mutant.file}: {mutant.why} ({', '.join(mutant.tests)})"
        for sign, text in (("-", mutant.old), ("+", mutant.new)):
            yield from (f"{sign} {line}" for line in text.split("\n"))
    for mutant in (mutant for mutant in mutants if mutant.equivalent):
        yield f"\nnot tried: {mutant.room}, {mutant.file}: {mutant.why}: {mutant.equivalent}"


def figures(killed: dict[Mutant, bool]) -> Iterator[report.Figure]:
    """The shares by room, and of all, which has a target."""
    for room in dict.fromkeys(mutant.room for mutant in killed):
        own = [noticed for mutant, noticed in killed.items() if mutant.room == room]
        yield report.Figure(f"{room}: killed", sum(own), f"of {len(own)} mutants")
    yield report.at_least("share of the mutants that is killed", sum(killed.values()) / len(killed), "", ENOUGH)


def main(root: Path, arguments: Sequence[str]) -> int:
    """Returns 1 where too few mistakes are noticed, and 2 where the table cannot be used."""
    parser = argparse.ArgumentParser(description="Plant mistakes, and see which of them the tests notice.")
    parser.add_argument("--room", help="only this one's")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    asked = parser.parse_args(arguments)
    results, now = root / RESULTS, revision(root)
    try:
        mutants = [mutant for mutant in load(root) if asked.room in (None, mutant.room)]
        if not mutants:
            raise TableError(f"there is no room {asked.room}")
        if asked.sample is not None:
            mutants = random.Random(asked.seed).sample(mutants, min(asked.sample, len(mutants)))
        keys = {mutant: mutant.key(root) for mutant in mutants if not mutant.equivalent}
        lines = results.read_text().splitlines() if results.exists() else []
        known = {row["id"]: row["killed"] for row in map(json.loads, lines)}
        left = [mutant for mutant, key in keys.items() if key not in known]
        for mutant, by, seconds in tried(root, left, asked.jobs) if left else ():
            row = {"id": keys[mutant], "room": mutant.room, "killed": bool(by), "by": by, "seconds": round(seconds, 1)}
            with results.open("a") as file:
                file.write(json.dumps(row | {"revision": now}) + "\n")
            known[keys[mutant]] = bool(by)
            print(f"{'killed' if by else 'SURVIVED'} in {seconds:.0f} s: {mutant.room}: {mutant.why}", flush=True)
    except TableError as error:
        print(f"error: {TABLE}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 128 + signal.SIGINT
    killed = {mutant: known[key] for mutant, key in keys.items()}
    print(*summary(mutants, killed), sep="\n")
    if asked.room is asked.sample is None and root == report.ROOT:
        report.write("mutants", list(figures(killed)))
    return int(sum(killed.values()) < ENOUGH * len(killed))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent, sys.argv[1:]))
