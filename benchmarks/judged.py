"""How often do graders judge an answer wrongly? Gold answers in many spellings, whose truth is known from their making.

    python benchmarks/judged.py --benchmarks-dir FOLDER [--before REVISION] [--quick]
    python benchmarks/judged.py --labelled FILE... [--before REVISION]

``FOLDER`` holds JSONL files of rows with ``id``, ``problem``, ``answer``; those with ``references`` are left out.

- Every different gold answer in at least 40 spellings (``spellings.py``), right ones and wrong ones: the rate of wrong
  ones that score, of right ones that do not, and both by class of spelling. ``mistakes`` of the result has those of
  our reward by their row's id. Gold answers that are prose are counted and not judged.
- math-verify beside it, on the spellings of a sample of the gold answers.
- Hostile responses, drawn token by token and wrapped in one another from a seed; each wrong by its last part.
- Throughput beside that of ``REVISION``'s code, in turns: a batch of 1,024 on two warm workers.

With ``--labelled``, instead, responses of models and whether they are right (``labelled.py``), in rows with ``gold``,
``response`` and ``label``: what both graders make of them, and how long it takes; responses that give the gold and
another answer; hostile ones; and the time of ``REVISION``'s code on the same rows.

``--quick`` takes rows of its own and fewer responses, and measures nothing of an earlier revision.
"""

import argparse
import io
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from figures import ROOT, Figure, at_least, at_most, write
from labelled import beside, hedged, labelled
from rewards import OWN_ROWS, Case, judge, read, under_attack
from spellings import Spelling, spellings

from oblr.problem import Problem
from oblr.rewards.answer import BoxedFormat
from oblr.rewards.math import MathReward
from oblr.rewards.math_verify import MathVerifyReward

MATH = MathReward(BoxedFormat())
SAMPLE, HOSTILE, ROUNDS = 60, 5600, 3
#: Measures one revision's throughput with its own code, whose folder is the working directory.
RATE = """
import sys
from pathlib import Path
from rewards import read, throughput
files = [path for path in sorted(Path(sys.argv[1]).glob("*.jsonl")) if "dialogsum" not in path.name]
print(throughput("all", [problem for path in files for problem in read(path)], None)[0].value)
"""


def different(files: Sequence[list[Problem]]) -> list[Problem]:
    """The first problem with each gold answer."""
    found: dict[str, Problem] = {}
    for problems in files:
        for problem in problems:
            if "references" not in problem.metadata:
                found.setdefault(problem.answer.strip(), problem)
    return list(found.values())


def spelled(problem: Problem) -> list[Spelling]:
    return list(spellings(problem.answer, random.Random(problem.id), problem.prompt))


def rates(name: str, judged: Sequence[tuple[Spelling, bool]], targets: bool) -> list[Figure]:
    """Mistakes in per cent, of all and by class."""

    def figure(title: str, mistakes: int, of: int, bound: float) -> Figure:
        share = 100 * mistakes / of if of else 0.0
        return at_most(f"{name}: {title}", share, "%", bound) if targets else Figure(f"{name}: {title}", share, "%")

    of, mistakes = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for spelling, verdict in judged:
        of[spelling.kind, spelling.right] += 1
        mistakes[spelling.kind, spelling.right] += verdict != spelling.right
    figures = [Figure(f"{name}: spellings", len(judged), "")]
    for right, title, bound in ((False, "false positives", 0.05), (True, "false negatives", 0.5)):
        every = [key for key in of if key[1] == right]
        figures.append(figure(title, sum(mistakes[key] for key in every), sum(of[key] for key in every), bound))
    for kind, right in sorted(of):
        title = f"{kind}: {'right ones that do not score' if right else 'wrong ones that score'}"
        figures.append(figure(title, mistakes[kind, right], of[kind, right], 3))
    return figures


def ours(problems: Sequence[Problem]) -> tuple[list[Figure], list[dict[str, str | bool]]]:
    judged = [(problem, one, MATH.correct(problem, one.text)) for problem in problems for one in spelled(problem)]
    mistakes: list[dict[str, str | bool]] = [
        {"row": problem.id, "class": one.kind, "right": one.right}
        for problem, one, verdict in judged
        if verdict != one.right
    ]
    fewest = min(Counter(problem.id for problem, *_ in judged).values())
    figures = [at_least("spellings of a gold answer, fewest", fewest, "", 40)]
    return figures + rates("ours", [(one, verdict) for _, one, verdict in judged], targets=True), mistakes


def theirs(problems: Sequence[Problem]) -> list[Figure]:
    """math-verify's, of boxed spellings; where it met the limit of 30 s, it did not score."""
    drawn = [(problem, one) for problem in problems for one in spelled(problem)]
    cases = [Case(problem, rf"\boxed{{{one.text}}}", one.kind) for problem, one in drawn]
    scored = [verdict.reward == 1 for verdict in judge(MathVerifyReward(require_end=False), cases)]
    return rates("math-verify", [(one, verdict) for (_, one), verdict in zip(drawn, scored, strict=True)], False)


_PIECES = (
    *"0123456789+-*/^_!=<>,;:|()[]{}%$&.~",
    *(
        "\\frac",
        "\\sqrt",
        "\\left(",
        "\\right)",
        "\\text{",
        "\\boxed{",
        "\\sum",
        "\\int",
        "\\binom",
        "^{",
        "_{",
        "\\\\",
    ),
    *("\\begin{pmatrix}", "\\end{pmatrix}", "\\pm", "\\cup", "\\infty", "\\pi", "\\overline{", "\\log", "\\in", "\\{"),
    *(
        "\0",
        "\ud800",
        "\u202e",
        "９",
        "²",
        "½",
        "−",
        "\n",
        "\t",
        " or ",
        " and ",
        "not ",
        "e9",
        "x",
        "__import__('os')",
    ),
)
_WRAPS = (
    *(("(", ")"), ("\\frac{1}{", "}"), ("\\sqrt{", "}"), ("\\left(", "\\right)"), ("{", "}"), ("[", "]"), ("|", "|")),
    *(("\\text{", "}"), ("\\boxed{", "}"), ("9^{", "}"), ("", "!"), ("-", ""), ("\\frac{", "}{3}"), ("\\log ", "")),
    *(("\\begin{pmatrix}", "\\end{pmatrix}"), ("\\{", "\\}"), ("x=", ""), ("\\sum_{n=1}^{", "} n"), ("$", "$")),
)


def balanced(text: str) -> bool:
    """Whether no brace closes one that ``text`` has not opened."""
    depth = 0
    for brace in re.findall(r"(?s)\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def hostile(n: int, seed: int) -> list[Case]:
    """Responses of drawn pieces, wraps, repeats and golds, none of them right: the last box holds what no gold is."""
    draw = random.Random(seed)
    golds = ["7", r"\frac{1}{2}", r"3\sqrt{13}", "p - q", "(3,4]", "1,-2", r"\text{Evelyn}", "2^{1009}", "m < 3"]

    def soup(gold: str) -> str:
        return "".join(draw.choices([*_PIECES, gold], k=draw.randint(1, 60)))

    def grown(gold: str) -> str:
        text = draw.choice([gold, soup(gold), str(draw.randint(0, 10**18))])
        for _ in range(draw.randint(0, 6)):
            (before, after), times = draw.choice(_WRAPS), draw.choice([1, 1, 2, 5, 40, 400])
            text = before * times + text + after * times
        return text * draw.choice([1, 1, 1, 2, 50]) if len(text) < 10**4 else text

    made = []
    for i in range(n):
        gold = draw.choice(golds)
        inside = (
            f"{grown(gold)}{draw.choice(['+', ', ', '=', ' or ', ' ', '^', '<', ';'])}424242{draw.randint(1, 10**6)}"
        )
        frame = draw.choice([r"\boxed{%s}", "the answer is %s", r"\boxed{%s", "Answer: $%s$", "#### %s", r"\fbox{%s}"])
        text = soup(gold) + frame.replace("%s", inside)
        if "box" not in frame:  # a box would count, and the first sentence
            text = text.replace("box", "hat").replace("\n", " ").replace(".", "")
        elif not balanced(inside):  # the box ends somewhere before, and may hold the gold
            gold = "31415926"
        made.append(Case(Problem(f"hostile-{seed}-{i}", "?", gold), text, frame))
    return made


def throughputs(before: str, folder: Path) -> list[Figure]:
    """In turns, so that both have the same company."""
    archive = subprocess.run(["git", "archive", before, "src", "benchmarks"], cwd=ROOT, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(name, filter="data")
        rounds = [(measured(Path(name), folder), measured(ROOT, folder)) for _ in range(ROUNDS)]
    old, new = (median(rate) for rate in zip(*rounds, strict=True))
    return [
        Figure(f"throughput of {before[:10]}, 2 workers", old, "/s"),
        at_least("throughput, 2 workers", new, "/s", old),
    ]


def measured(tree: Path, folder: Path) -> float:
    path = f"{tree / 'benchmarks'}:{tree / 'src'}"
    command = [sys.executable, "-c", RATE, str(folder.resolve())]
    done = subprocess.run(command, cwd=tree, env={"PYTHONPATH": path}, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def of_models(files: Sequence[Path], before: str | None, quick: bool) -> None:
    figures, mistakes = labelled(files)
    figures.append(hedged(files, 20 if quick else 400))
    attacked, kinds = under_attack(hostile(20 if quick else HOSTILE // 4, 3), 1.0 if quick else 5.0)
    figures += attacked
    if before and not quick:
        figures += beside(before, files)
    name = "judged-labelled-quick" if quick else "judged-labelled"
    write(name, figures, mistakes=mistakes, hostile=kinds)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks-dir", type=Path)
    parser.add_argument("--labelled", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--before", metavar="REVISION", help="whose throughput is measured beside this one's")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if asked.labelled:
        of_models(asked.labelled, asked.before, asked.quick)
        return
    if asked.quick:
        with tempfile.TemporaryDirectory() as folder:
            of_models([own_responses(Path(folder))], None, quick=True)
        problems = [Problem(f"own-{i}", "?", answer) for i, answer in enumerate(OWN_ROWS)]
    elif asked.benchmarks_dir is None:
        parser.error("--benchmarks-dir is needed: only --quick has rows of its own")
    else:
        problems = different([read(path) for path in sorted(asked.benchmarks_dir.glob("*.jsonl"))])
    judged = [problem for problem in problems if MATH.judges(problem)]
    figures = [
        Figure("gold answers", len(problems), ""),
        Figure("gold answers that are prose", len(problems) - len(judged), ""),
    ]
    found, mistakes = ours(judged)
    sample = random.Random(0).sample(judged, 2 if asked.quick else SAMPLE)
    figures += [*found, *theirs(sample)]
    attacked, kinds = under_attack(hostile(60 if asked.quick else HOSTILE, 3), 1.0 if asked.quick else 5.0)
    figures += attacked
    if asked.before and not asked.quick:
        figures += throughputs(asked.before, asked.benchmarks_dir)
    write("judged-quick" if asked.quick else "judged", figures, mistakes=mistakes, hostile=kinds)


if __name__ == "__main__":
    main()
