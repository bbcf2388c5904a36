"""Responses of models with labels, right or wrong: how often a grader says otherwise, and how long it takes.

Part of ``judged.py``. A file has rows with ``gold``, ``response`` and ``label`` (true where it is right), and, if they
are known, ``problem`` and ``id``. ``docs/rewards.md`` says which public files were used, and who labelled them.
"""

import json
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from statistics import median

from figures import ROOT, Estimate, Figure, at_most
from rewards import MATH, Case, judge

from oblr.metrics.accuracy import wilson
from oblr.problem import Problem
from oblr.rewards.math_verify import MathVerifyReward

#: Per cent of right responses that may score nothing; the golds of Omni-MATH are harder to read.
FALSE_NEGATIVES = {"omni": 1.0, "": 0.2}
FALSE_POSITIVES, ROUNDS = 0.05, 5
#: ``{0}`` or ``{1}`` is the right answer, and the other one is not.
HEDGES = (
    *(r"\boxed{{{0}}} or \boxed{{{1}}}", "$\\boxed{{{0}}}$\n\n$\\boxed{{{1}}}$", r"\boxed{{{0} \text{{ or }} {1}}}"),
    *("The answer is ${0}$. The answer is ${1}$.", "The answer is ${0}$ or ${1}$.", "Answer: {0}\nAnswer: {1}"),
    *("<answer>{0}</answer><answer>{1}</answer>", "#### {0}\n#### {1}", "## Answer\n\n**{0}** or **{1}**"),
    *("Thus, it is either **{0}** or **{1}**.", "Therefore it is ${0}$ or ${1}$.", "Options:\n- {0}\n- {1}"),
    r"So it is $\boxed{{{0}}}$. Alternatively, it could be $\boxed{{{1}}}$.",
)
#: Measures one revision's time per verdict with its own code, whose folder is the working directory.
SECONDS = """
import json, sys, time
from rewards import ENDED, MATH
from oblr.problem import Problem
rows = [json.loads(line) for path in sys.argv[1:] for line in open(path, encoding="utf-8")]
problems = [Problem(str(i), row.get("problem") or "?", row["gold"]) for i, row in enumerate(rows)]
MATH.warm_up()
start = time.process_time()
for problem, row in zip(problems, rows):
    MATH(problem, row["response"], ENDED)
print((time.process_time() - start) / len(rows))
"""


def read(path: Path) -> list[tuple[Case, bool]]:
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        (
            Case(Problem(str(row.get("id", i)), row.get("problem") or "?", row["gold"]), row["response"], path.stem),
            label,
        )
        for i, row in enumerate(rows)
        for label in [bool(row["label"])]
    ]


def labelled(paths: Sequence[Path]) -> tuple[list[Figure], list[dict[str, str | bool]]]:
    """False negatives and positives of both graders in each file and in all, and our mistakes by their row's id."""
    figures: list[Figure] = []
    mistakes: list[dict[str, str | bool]] = []
    for path in paths:
        rows = read(path)
        cases, labels = [case for case, _ in rows], [label for _, label in rows]
        verdicts, seconds = timed(ours, cases)
        theirs, their_seconds = timed(of_math_verify, cases)
        bound = next(bound for part, bound in FALSE_NEGATIVES.items() if part in path.stem)
        figures += [
            *rates(f"{path.stem}: ours", labels, verdicts, bound),
            *rates(f"{path.stem}: math-verify", labels, theirs, None),
            Figure(f"{path.stem}: ours, a verdict", 1000 * seconds, "ms"),
            Figure(f"{path.stem}: math-verify, a verdict", 1000 * their_seconds, "ms"),
        ]
        mistakes += [
            {"file": path.stem, "row": case.problem.id, "right": label}
            for case, label, verdict in zip(cases, labels, verdicts, strict=True)
            if verdict != label
        ]
    return figures, mistakes


def hedged(paths: Sequence[Path], most: int) -> Figure:
    """Responses that give the right answer and another file's next one: how many are paid."""
    cases = [case for path in paths for case, label in read(path) if label]
    cases = [case for case in cases if "box" not in case.problem.answer and "\\[" not in case.problem.answer]  # frames
    cases = random.Random(0).sample(cases, min(most, len(cases)))
    both = [
        Case(one.problem, form.format(*golds), form)
        for one, other in zip(cases, [*cases[1:], *cases[:1]], strict=True)
        if not MATH.correct(one.problem, other.problem.answer)
        and not MATH.correct(Problem("both", "?", one.problem.answer), f"{one.problem.answer}, {other.problem.answer}")
        for form in HEDGES
        for golds in ((one.problem.answer, other.problem.answer), (other.problem.answer, one.problem.answer))
    ]
    return at_most(f"paid of {len(both)} that give two answers", sum(ours(both)), "", 0)


def ours(cases: list[Case]) -> list[bool]:
    return [verdict.reward == 1 for verdict in judge(MATH, cases)]


def of_math_verify(cases: list[Case]) -> list[bool]:
    """Where it met the limit of 30 s, it did not score."""
    return [verdict.reward == 1 for verdict in judge(MathVerifyReward(require_end=False), cases)]


def timed(grade: Callable[[list[Case]], list[bool]], cases: list[Case]) -> tuple[list[bool], float]:
    """Verdicts, and seconds for each on two processes, their start left out."""
    start = time.perf_counter()
    grade(cases[:1])
    middle = time.perf_counter()
    verdicts = grade(cases)
    return verdicts, max(time.perf_counter() - middle - (middle - start), 0.0) / len(cases)


def rates(name: str, labels: Sequence[bool], verdicts: Sequence[bool], bound: float | None) -> list[Figure]:
    """Of right ones that do not score and of wrong ones that do, in per cent with Wilson's interval."""
    figures = []
    for right, title, most in (
        (True, "right ones that do not score", bound),
        (False, "wrong ones that score", None if bound is None else FALSE_POSITIVES),
    ):
        said = [verdict for label, verdict in zip(labels, verdicts, strict=True) if label == right]
        if not said:
            continue
        mistakes = sum(verdict != right for verdict in said)
        low, high = (100 * end for end in wilson(mistakes / len(said), len(said))[1:])
        share = 100 * mistakes / len(said)
        figure = Estimate(f"{name}: {title}", share, "%", low=low, high=high)
        if most is not None:
            figure = replace(figure, target=f"≤ {most:g}", holds=share <= most)
        figures += [Figure(f"{name}: {title}, counted", mistakes, f"of {len(said)}"), figure]
    return figures


def beside(before: str, paths: Sequence[Path]) -> list[Figure]:
    """Time per verdict over that of an earlier revision's code, in turns, so that both have the same company."""
    archive = subprocess.run(["git", "archive", before, "src", "benchmarks"], cwd=ROOT, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
            tar.extractall(name, filter="data")
        rounds = [(seconds(Path(name), paths), seconds(ROOT, paths)) for _ in range(ROUNDS)]
    ratio = median(new / old for old, new in rounds)
    return [
        Figure(f"a verdict by {before[:10]}", 1000 * median(old for old, _ in rounds), "ms"),
        Figure("a verdict", 1000 * median(new for _, new in rounds), "ms"),
        at_most(f"a verdict, over one by {before[:10]}", ratio, "×", 1.1),
    ]


def seconds(tree: Path, paths: Sequence[Path]) -> float:
    command = [sys.executable, "-c", SECONDS, *(str(path.resolve()) for path in paths)]
    environment = {"PYTHONPATH": f"{tree / 'benchmarks'}:{tree / 'src'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])
