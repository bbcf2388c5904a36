"""Responses of models with labels, right or wrong: how often does a grader say otherwise, and how long does it take?

    python benchmarks/judged.py --labelled FILE... [--quick]

A file has rows with ``gold``, ``response`` and ``label`` (true where it is right), and, if they are known, ``problem``
and ``id``. ``docs/rewards.md`` says which public files were used, and who labelled them. Beside our reward's verdicts
are those of math-verify; ``mistakes`` of the result has ours by their row's id. Then right responses are given another
row's answer besides: none may be paid. ``--quick`` takes rows of its own.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from figures import Estimate, Figure, at_most, parser, write
from rewards import MATH, OWN_ROWS, Case, judge

from oblr.metrics.accuracy import wilson
from oblr.problem import Problem
from oblr.rewards.math_verify import MathVerifyReward

#: Per cent of right responses that may score nothing; the golds of Omni-MATH are harder to read.
FALSE_NEGATIVES = {"omni": 1.0, "": 0.2}
FALSE_POSITIVES = 0.05
#: ``{0}`` or ``{1}`` is the right answer, and the other one is not.
HEDGES = (
    *(r"\boxed{{{0}}} or \boxed{{{1}}}", "$\\boxed{{{0}}}$\n\n$\\boxed{{{1}}}$", r"\boxed{{{0} \text{{ or }} {1}}}"),
    *("The answer is ${0}$. The answer is ${1}$.", "The answer is ${0}$ or ${1}$.", "Answer: {0}\nAnswer: {1}"),
    *("<answer>{0}</answer><answer>{1}</answer>", "#### {0}\n#### {1}", "## Answer\n\n**{0}** or **{1}**"),
    *("Thus, it is either **{0}** or **{1}**.", "Therefore it is ${0}$ or ${1}$.", "Options:\n- {0}\n- {1}"),
    r"So it is $\boxed{{{0}}}$. Alternatively, it could be $\boxed{{{1}}}$.",
)


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


def own_responses(folder: Path) -> Path:
    """A file of labelled rows, as models would write them."""
    rows = [
        {"gold": gold, "response": f"So it is.\n\n{form}", "label": right}
        for i, gold in enumerate(OWN_ROWS)
        for answer, right in ((gold, True), (OWN_ROWS[i - 1], False))
        for form in (rf"$\boxed{{{answer}}}$", f"**Answer:** {answer}")
    ]
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--labelled", type=Path, nargs="+", metavar="FILE")
    asked = options.parse_args()
    if not asked.quick and not asked.labelled:
        options.error("--labelled is needed: only --quick has rows of its own")
    with tempfile.TemporaryDirectory() as folder:
        files = asked.labelled or [own_responses(Path(folder))]
        figures, mistakes = labelled(files)
        figures.append(hedged(files, 20 if asked.quick else 400))
    write("judged-quick" if asked.quick else "judged", figures, mistakes=mistakes)


if __name__ == "__main__":
    main()
