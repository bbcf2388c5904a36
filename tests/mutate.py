"""Plant mistakes in the code, one at a time, and see which of them the tests, or the types, notice.

    PYTHONPATH=benchmarks:tests/helpers python tests/mutate.py [FILE ...] [--room ROOM] [--since REV]
                                                               [--sample N --seed S] [--minutes M] [--jobs J]

Which mistakes there are is mutmut's (`mutations.py`); a sample of them is drawn from all rooms in turn. Each is planted
in a copy of the checkout, and meets the test files that are nearest to it (`nearest.py`) until a test fails, which
passes without it, and then mypy, as `make lint` runs it. Where tests take too long it is undecided. What says ``#
pragma: no mutate`` stays as it is. A call of nothing but ``--seed`` and ``--jobs`` writes
``benchmarks/results/mutants.json``.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import SimpleQueue

import figures
import pytest
import warm
from mutations import Mutant, differing, drawn, room_of
from nearest import nearest_tests

#: How many are drawn, unless the call says.
SAMPLE = 64
#: Share of them that should be noticed, and below which a call fails: some code is met by real servers alone.
ENOUGH, LEAST = 0.85, 0.5
#: Test files that a mutant meets.
FILES = 6
#: Seconds after which a mutant is left undecided, those of one test, which has failed then, and how much shorter a test
#: must be without a mistake.
PATIENCE, ONE_TEST, SHORTER = 120, 45, 3
#: In the environment of every process of a trial, so that none outlives it: the folder of its copy.
MARK = "MUTANT_COPY"


@dataclass
class Trial:
    """``by``: the test that noticed it, or mypy; "" if none did, and None where time ran out before either."""

    mutant: Mutant
    by: str | None
    seconds: float


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


def first_failure(folder: Path, tests: Sequence[str], words: Sequence[str], seconds: float, each: float) -> str | None:
    """The test of a copy that fails or takes longer than ``each``; "" if none does; None if they take too long.

    What keeps tests from being collected counts as a failure of the first file.
    """
    path = filter(None, [str(folder / "src"), str(folder), os.environ.get("PYTHONPATH")])
    log = folder.with_suffix(".log")
    log.write_text("")
    # A file that changes twice within a second must not be taken for what was compiled in between.
    own = {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1", MARK: str(folder)}
    own |= {"TEST_LOG": str(log), "TEST_WORDS": " ".join(words)}
    options = ["-x", "-p", "no:cacheprovider", "-n", "0", f"--timeout={each:.0f}"]
    command = [str(Path(__file__).parent / "helpers" / "pytest_alone.py"), *options, *tests]
    start = time.monotonic()
    try:
        status = warm.run(command, folder, os.environ | own, seconds).returncode
    except subprocess.TimeoutExpired:
        status = None
    finally:
        kill_remains(folder)
    lines = [[tests[0], "starts", start], *map(json.loads, log.read_text().splitlines())]
    if failed := [test for test, event, _ in lines if event == "failed"]:
        return failed[0]
    if status is None:  # a test that no signal of Python's ends, or many tests
        test, event, since = lines[-1]
        return test if event == "starts" and time.monotonic() - since > each else None
    return "" if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else tests[0]


def mypy_refuses(folder: Path, file: str) -> bool:
    return subprocess.run([sys.executable, "-m", "mypy", file], cwd=folder, capture_output=True).returncode == 1


def kill_remains(folder: Path) -> None:
    """End whatever a trial in this copy has started, in whatever session it is: what works in it, or has its mark."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            marked = f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
            if marked or (process / "cwd").readlink().is_relative_to(folder):
                os.kill(int(process.name), signal.SIGKILL)


def tried(root: Path, mutants: Sequence[Mutant], jobs: int, end: float) -> Iterator[Trial]:
    """Each mutant, in any order; ``end`` is when the time of the call has run out, on the monotonic clock."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in conftest.py, but before torch is there
    warm.popen()  # before there are threads
    copies, passes = SimpleQueue[Path](), dict[str, bool]()

    def one(mutant: Mutant) -> Trial:
        folder, start = copies.get(), time.monotonic()
        by: str | None = ""
        file = folder / mutant.file
        good = file.read_text()
        tests = nearest_tests(root, mutant.file, mutant.scope, FILES)
        while tests:
            left = [f"--deselect={test}" for test, fine in passes.items() if not fine]
            file.write_text(mutant.code())
            seconds = min(start + PATIENCE, end) - time.monotonic()
            found = first_failure(folder, [*tests, *left], mutant.scope, seconds, ONE_TEST) if seconds > 0 else None
            if not file.is_file():  # the mistake has deleted what it lies in, and whoever tests sees that
                shutil.rmtree(folder, ignore_errors=True)
                copy(root, folder)
                by = tests[0]
                break
            file.write_text(good)
            if not found:
                by = found
                break
            if found not in passes:
                alone = [found] if "::" in found else [found, "--collect-only"]
                passes[found] = first_failure(folder, alone, (), ONE_TEST, ONE_TEST / SHORTER) == ""
            if passes[found]:
                by = found
                break
            tests = [test for test in tests if test != found]  # a file that cannot be collected
        if by == "" and not mypy_refuses(folder, mutant.file):
            file.write_text(mutant.code())
            by = "mypy" if mypy_refuses(folder, mutant.file) else ""
            file.write_text(good)
        copies.put(folder)
        return Trial(mutant, by, time.monotonic() - start)

    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as name, ThreadPool(jobs) as pool:
        folders = [copy(root, Path(name, str(job))) for job in range(jobs)]
        for folder in folders:
            copies.put(folder)
        try:
            yield from pool.imap_unordered(one, mutants)
        finally:
            for folder in folders:
                kill_remains(folder)


def by_room(root: Path, trials: Sequence[Trial]) -> Iterator[tuple[str, int, int]]:
    """(room, planted, noticed), and those of all."""
    rooms = [room_of(root, trial.mutant.file) for trial in trials]
    for name in [*sorted(set(rooms)), "all"]:
        own = [bool(trial.by) for trial, room in zip(trials, rooms, strict=True) if name in (room, "all")]
        yield name, len(own), sum(own)


def write(root: Path, trials: Sequence[Trial]) -> None:
    """Keep how many of each room are noticed, the share of all, which has a target, and what is not noticed."""
    *rooms, (_, planted, noticed) = by_room(root, trials)
    found = [figures.Figure(f"{room}: noticed", own, f"of {all_} mutants") for room, all_, own in rooms]
    found.append(figures.at_least("share of the mutants that is noticed", noticed / planted, "", ENOUGH))
    missed = [trial.mutant for trial in trials if not trial.by]
    figures.write("mutants", found, missed=[{"at": f"{m.file}:{m.line}", "change": m.change()} for m in missed])


def too_few(noticed: int, planted: int) -> bool:
    """Whether a sample tells: so few or fewer come once in a thousand samples where the share of all is LEAST."""
    chances = (math.comb(planted, n) * LEAST**n * (1 - LEAST) ** (planted - n) for n in range(noticed + 1))
    return sum(chances) < 1e-3


def main(root: Path, arguments: Sequence[str]) -> int:
    """Returns 1 where the tests notice too few mistakes, and 2 where there is nothing to plant."""
    parser = argparse.ArgumentParser(description="Plant mistakes, and see which of them are noticed.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="only in these")
    parser.add_argument("--room", help="only in this one's files")
    parser.add_argument("--since", metavar="REV", help="only in functions that differ from REV's; in all if none does")
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), metavar="M", help="what is tried later is undecided"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    asked = parser.parse_args(arguments)
    end = time.monotonic() + 60 * asked.minutes
    paths = [*(root / "src").rglob("*.py"), *(root / "callbacks").rglob("*.py")]
    lines: dict[str, set[int] | None] = {str(path.relative_to(root)): None for path in paths}
    if asked.since:
        try:
            lines = dict(differing(root, asked.since)) or lines
        except subprocess.CalledProcessError as error:
            print(f"error: --since: {error.stderr.strip().splitlines()[0]}", file=sys.stderr)
            return 2
    lines = {
        file: its
        for file, its in lines.items()
        if asked.room in (None, room_of(root, file)) and (not asked.files or file in asked.files)
    }
    mutants = list(islice(drawn(root, lines, random.Random(asked.seed)), asked.sample))
    if not mutants:
        print("error: there is nothing to plant there", file=sys.stderr)
        return 2
    trials: list[Trial] = []
    try:
        for trial in tried(root, mutants, asked.jobs, end):
            trials.append(trial)
            verdict = {"": "NOT NOTICED", None: "undecided"}.get(trial.by, trial.by)
            if time.monotonic() < end:  # the others have not been tried
                print(f"{trial.seconds:4.0f} s  {trial.mutant.file}:{trial.mutant.line}  {verdict}", flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    decided = [trial for trial in trials if trial.by is not None]
    for mutant in (trial.mutant for trial in decided if not trial.by):
        print(f"\nnot noticed: {mutant.file}:{mutant.line}", *mutant.change(), sep="\n")
    print(f"\n{'room':12}{'planted':>9}{'noticed':>9}{'share':>7}")
    for room, planted, noticed in by_room(root, decided):
        print(f"{room:12}{planted:9}{noticed:9}{noticed / max(planted, 1):7.0%}")
    if left := len(mutants) - len(decided):
        print(f"{left} of {len(mutants)} are undecided")
    usual = asked == parser.parse_args(["--jobs", str(asked.jobs), "--seed", str(asked.seed)])
    if decided and usual and root == figures.ROOT and len(trials) == len(mutants):
        write(root, decided)
    return int(too_few(noticed, planted))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent, sys.argv[1:]))
