"""Run the whole suite again and again, and tell how long it takes and how many times in a row it has passed.

    PYTHONPATH=benchmarks python tests/again.py --runs 5 [--busy 2 | --idle]
    PYTHONPATH=benchmarks python tests/again.py --record

``--busy`` keeps so many processes beside it at work: a test that depends on being fast, or on nobody else being there,
fails then. Every run, passed or not, is kept in ``.cache/suite`` with the machine's mean load, and the output of one
that failed, which ends the series. Until then nothing changes that the suite itself looks at. ``--record`` adds these
runs to ``benchmarks/results/suite.jsonl``, and what all say together is ``benchmarks/results/suite.json``.
"""

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import takewhile
from statistics import mean

import figures
import measured

from oblr.run.provenance import revision

ROOT = figures.ROOT
RUNS = ROOT / "benchmarks" / "results" / "suite.jsonl"
OUTPUT = ROOT / ".cache" / "suite"
NEW = OUTPUT / "runs.jsonl"
#: Seconds on two cores that nobody else uses.
LIMIT = 720
#: Mean load of a machine on which others keep two cores busy besides the suite, which does so too.
LOADED = 4


@dataclass(frozen=True)
class Run:
    """One run of the suite: ``load`` is the machine's, on average; ``idle`` says that it had the machine for itself."""

    revision: str
    passed: bool
    tests: int
    seconds: float
    load: float
    idle: bool


def run(busy: int, idle: bool) -> Run:
    """The suite as ``make test`` runs it, beside ``busy`` processes that compute."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    output = OUTPUT / f"{int(time.time())}.log"
    others = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(busy)]
    for other in others:
        other.start()
    start, loads = time.monotonic(), []
    with output.open("w") as file:
        suite = subprocess.Popen([sys.executable, "-m", "pytest"], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        while suite.poll() is None:
            time.sleep(1)
            loads.append(os.getloadavg()[0])
    for other in others:
        other.kill()
    counted = re.findall(r"(\d+) passed", output.read_text())
    passed, tests = suite.returncode == 0, int(counted[-1]) if counted else 0
    if passed:
        output.unlink()
    return Run(revision(ROOT), passed, tests, time.monotonic() - start, mean(loads), idle)


def _compute() -> None:
    while True:
        sum(range(10_000))


def series(runs: list[Run]) -> list[figures.Figure]:
    """What the last runs that passed say together."""
    row = list(takewhile(lambda run: run.passed, reversed(runs)))
    found = [
        figures.at_least("runs in a row that passed", len(row), "", 10),
        figures.at_least("of them on a loaded machine", sum(run.load >= LOADED for run in row), "", 5),
    ]
    if alone := [run.seconds for run in row if run.idle]:
        found.append(figures.at_most("time on a machine of its own, longest", max(alone), "s", LIMIT))
    if beside := [run.seconds for run in row if run.load >= LOADED]:
        found.append(figures.Figure("time on a loaded machine, mean", mean(beside), "s"))
    return found


def record() -> None:
    with RUNS.open("a") as file:
        file.write(NEW.read_text())
    NEW.unlink()
    figures.write("suite", series([Run(**json.loads(line)) for line in RUNS.read_text().splitlines()]))
    measured.main()  # a test of the suite looks whether the page has every result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside the suite")
    parser.add_argument("--idle", action="store_true", help="nothing else runs here: the time counts")
    parser.add_argument("--record", action="store_true", help="make no run: add those that were made to the results")
    arguments = parser.parse_args()
    if arguments.record:
        return record()
    for _ in range(arguments.runs):
        done = run(arguments.busy, arguments.idle)
        with NEW.open("a") as file:
            file.write(json.dumps(asdict(done)) + "\n")
        print(done, flush=True)
        if not done.passed:
            sys.exit(1)


if __name__ == "__main__":
    main()
