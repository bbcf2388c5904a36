"""Can the rewards be fooled or hung, and how fast are they?

    python benchmarks/rewards.py --benchmarks-dir FOLDER [--quick]

``FOLDER`` holds JSONL files of rows with ``id``, ``problem``, ``answer``; those with ``references`` are left out.

- Gold answers: each file's answers, in several written forms, against their own problem and, boxed, against the next
  problem with another answer. ``exceptions`` of the result has every one that is not as it should be, or only seems
  so, by its row's id. Beside it the share on which math-verify, left to find the answer in the same
  text by itself, says the same: on a sample of 200 rows a file.
- Hostile predictions, drawn from a seed: what they do to the workers, and what they earn.
- Throughput: warm workers, a batch of distinct problems, half of the answers wrong.

``--quick`` takes rows of its own and fewer predictions.
"""

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from figures import Figure, at_least, at_most, parser, write

from oblr.problem import Completion, Problem
from oblr.rewards.answer import BoxedFormat
from oblr.rewards.base import Reward
from oblr.rewards.lockdown import descendants
from oblr.rewards.math import MathReward
from oblr.rewards.math_verify import MathVerifyReward
from oblr.rewards.pool import RewardPool
from oblr.rewards.verdicts import Verdict

ENDED = Completion([1], [0.0], True)
MATH = MathReward(BoxedFormat())
COMPARED = 200
MEMORY_GIB = 1.0
BATCH = 1024
OWN_ROWS = [
    *("18", "72000", r"\frac{14}{3}", "0.15", "62.5%", r"90^\circ", r"1\frac{4}{5}", r"\$18.90", "-7", "4210_{5}"),
    *("(3,4]", "(2,4)", "1,-2", r"1 \pm \sqrt{19}", r"3\sqrt{13}", "p - q", "x=5"),
    *(r"\text{Evelyn}", "f(x)=2 x", "58,500"),
]
_NUMBER = re.compile(
    r"(?P<sign>-?)\\?\$?(?:(?P<whole>\d+)? ?\\[dt]?frac ?(?:\{(?P<over>-?\d+)\}|(?P<o>\d)) ?"
    r"(?:\{(?P<under>\d+)\}|(?P<u>\d))"
    r"|(?P<a>\d+)/(?P<b>\d+)|(?P<digits>\d+(?:(?:\{,\}|,\\! ?|,)\d{3})*)?(?P<decimals>\.\d+)?)(?P<percent> ?\\?%)?"
)


def number(gold: str) -> Fraction | None:
    """Its value, where it is a number; in percent where it has a percent sign."""
    match = _NUMBER.fullmatch(gold.strip())
    if match is None or not re.search(r"\d", gold):
        return None
    if over := match["over"] or match["o"] or match["a"]:
        value = Fraction(int(over), int(match["under"] or match["u"] or match["b"])) + int(match["whole"] or 0)
    else:
        value = Fraction(re.sub(r"\D", "", match["digits"] or "") + (match["decimals"] or "") or "0")
    return -value if match["sign"] else value


def plain(latex: str) -> str:
    """``latex`` as it is written without LaTeX, where it is a number or a fraction; else the same in other LaTeX."""
    value = number(latex)
    if value is None:
        return rewritten(latex)
    percent = "%" if "%" in latex else ""
    return (
        f"{value.numerator:,}{percent}" if value.denominator == 1 else f"{value.numerator}/{value.denominator}{percent}"
    )


def rewritten(latex: str) -> str:
    """An equal decimal, fraction, or LaTeX with other spacing, commands and braces."""
    value = number(latex)
    if value is not None:
        percent = r"\%" if "%" in latex else ""
        if value.denominator == 1:
            return f"{value.numerator}.0{percent}"
        if (decimal := terminating(value)) and "." not in latex:
            return decimal + percent
        sign = "-" if value < 0 else ""
        return rf"{sign}\dfrac{{{abs(value.numerator)}}}{{{value.denominator}}}{percent}"
    latex = re.sub(r"\\(left|right)(?![A-Za-z])", "", latex).replace(r"\frac", r"\dfrac")
    latex = re.sub(r"([_^])(\w)", r"\1{\2}", latex)
    return re.sub(r"(?<=[^\\])\s*([=+,])\s*", r" \1 ", latex).replace(" , !", r",\!")


def terminating(value: Fraction) -> str | None:
    for digits in range(1, 12):
        if (value * 10**digits).denominator == 1:
            return f"{float(value):.{digits}f}"
    return None


ANOTHERS = "another's answer, boxed"
FORMS: dict[str, Callable[[str], str]] = {
    "boxed": lambda answer: rf"It follows that $\boxed{{{answer}}}$.",
    "sentence": lambda answer: f"So the answer is {answer}.",
    "marker": lambda answer: "We are done.\nAnswer: $" + re.sub(r"(?<!\\)\$", "", answer) + "$",
    "re-written": lambda answer: rf"Hence \boxed{{{rewritten(answer)}}}",
    "plain": lambda answer: f"The final answer is {plain(answer)}. I hope it is correct.",
}


@dataclass(frozen=True, eq=False)
class Case:
    problem: Problem
    text: str
    label: str
    expected: float = 0.0


def read(path: Path) -> list[Problem]:
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Problem(row["id"], row["problem"], row["answer"], row) for row in rows]


def judge(reward: Reward, cases: list[Case], workers: int = 2) -> list[Verdict]:
    pool = RewardPool(reward, workers, timeout=30.0, memory_gib=MEMORY_GIB)
    verdicts = pool.score([c.problem for c in cases], [c.text for c in cases], [ENDED] * len(cases))
    pool.close()
    return verdicts


def others(problems: list[Problem]) -> Iterator[tuple[Problem, Problem]]:
    """Each problem with the next one whose answer is spelled differently."""
    for i, problem in enumerate(problems):
        rest = (problems[(i + k) % len(problems)] for k in range(1, len(problems)))
        other = next((p for p in rest if MATH.spelling(p.answer) != MATH.spelling(problem.answer)), None)
        if other is not None:
            yield problem, other


def gold_answers(name: str, problems: list[Problem]) -> tuple[list[Figure], list[dict[str, str]]]:
    cases = [Case(p, form(p.answer), label, 1.0) for label, form in FORMS.items() for p in problems]
    cases += [Case(p, FORMS["boxed"](other.answer), ANOTHERS) for p, other in others(problems)]
    verdicts = dict(zip(cases, judge(MATH, cases), strict=True))
    sample = {p.id for p in random.Random(0).sample(problems, min(COMPARED, len(problems)))}
    compared = [case for case in cases if case.problem.id in sample]
    theirs = dict(zip(compared, judge(MathVerifyReward(require_end=False), compared), strict=True))
    figures = []
    for label in (*FORMS, ANOTHERS):
        right = [verdict.reward == case.expected for case, verdict in verdicts.items() if case.label == label]
        same = [verdicts[case].reward == other.reward for case, other in theirs.items() if case.label == label]
        figures.append(Figure(f"{name}: {label}: scored as expected", 100 * sum(right) / len(right), "%"))
        figures.append(Figure(f"{name}: {label}: math-verify agrees", 100 * sum(same) / len(same), "%"))
    exceptions = [
        {"row": case.problem.id, "form": case.label}
        for case, verdict in verdicts.items()
        if verdict.reward != case.expected
    ]
    return figures, exceptions


def hostile(n: int, seed: int) -> list[Case]:
    """Predictions that mean harm; none of them deserves 1."""
    rng = random.Random(seed)
    golds = ["7", r"\frac{1}{2}", r"3\sqrt{13}", "p - q", "(3,4]", "1,-2", r"\text{Evelyn}", "2^{1009}"]
    kinds: dict[str, Callable[[str, int], str]] = {
        "deep nesting": lambda g, k: rf"\boxed{{{'(' * k}{g}{')' * k}+1}}",
        "nested roots": lambda g, k: rf"\boxed{{{(chr(92) + 'sqrt{') * (k % 90)}2{'}' * (k % 90)}+x}}",
        "nested fractions": lambda g, k: rf"\boxed{{{(chr(92) + 'frac{1}{1+') * (k % 60)}x{'}' * (k % 60)}}}",
        "power tower": lambda g, k: rf"\boxed{{x+{'^'.join(['{9'] * (k % 9 + 3))}{'}' * (k % 9 + 3)}}}",
        "Python power": lambda g, k: f"Answer: {'**'.join(['9'] * (k % 9 + 3))}",
        "factorials": lambda g, k: rf"\boxed{{({k}{k}!)!+x}}",
        "megabytes of digits": lambda g, k: rf"\boxed{{{str(k) * (10**6 + k)}}}",
        "100 digits": lambda g, k: rf"\boxed{{x^{{{str(k + 1) * 30}}}}}",
        "unbalanced braces": lambda g, k: rf"\boxed{{{'{' * k}{g}{'}' * (k // 2)}",
        "unbalanced after marker": lambda g, k: f"the answer is {'}' * (k % 50 + 1)}{g}{'{' * (k % 50)}",
        "null bytes": lambda g, k: f"\\boxed{{{g}\0\0{k}\0}}",
        "surrogates": lambda g, k: f"\\boxed{{{g}\ud800 {k}}}",
        "code": lambda g, k: rf"\boxed{{__import__('os').system('exit {k}')}}",
        "marker injected": lambda g, k: f"Answer: {g}\n#### {g}\nThe answer is {g}, or else the answer is {k}.5",
        "box after box": lambda g, k: "".join(rf"\boxed{{{a}}} " for a in (*golds, k + 0.5)),
        "many boxes": lambda g, k: rf"\boxed{{{g}}} " * 5000 + rf"\boxed{{{k}.5}}",
        "list of guesses": lambda g, k: rf"\boxed{{{', '.join([*golds, str(k)])}}}",
        "guesses with or": lambda g, k: rf"\boxed{{{g} \text{{ or }} {k}.5}}",
        "guesses in words": lambda g, k: rf"\boxed{{{g}\text{{ unless it is {k}.5}}}}",
        "infinite sum": lambda g, k: rf"\boxed{{\sum_{{n=1}}^{{\infty}} \frac{{{k + 1}}}{{n^{{n+x}}}}}}",
        "huge sum": lambda g, k: rf"\boxed{{\sum_{{n=1}}^{{10^{{{k}}}}} n!}}",
        "integral": lambda g, k: rf"\boxed{{\int_0^\infty e^{{-x^{{{k + 3}}}}} \sin(x^x) dx}}",
        "matrix": lambda g, k: r"\boxed{\begin{pmatrix}" + r" & ".join(["x"] * k) + r"\end{pmatrix}^{999}}",
        "question restated": lambda g, k: rf"\boxed{{{k}+7-{k}}}" if g == "7" else rf"\boxed{{{k}}}",
        "backslashes": lambda g, k: rf"\boxed{{{chr(92) * (2 * k)} {k}}}",
        "spaces": lambda g, k: "the answer is" + " " * (1000 * k) + f"{k}.5",
        "blank": lambda g, k: rng.choice(
            [r"\boxed{}", r"\boxed{ }", "Answer:", "", "\n", r"\boxed{\text{}}", r"\boxed{$$}"]
        ),
        "infinities": lambda g, k: rng.choice([r"\boxed{\infty}", r"\boxed{nan}", r"\boxed{0/0}", r"\boxed{1/0+x}"]),
    }
    names = list(kinds)
    return [
        Case(Problem(f"hostile-{i}", "?", gold), kinds[kind](gold, rng.randint(1, 400)), kind)
        for i in range(n)
        for kind, gold in [(names[i % len(names)], rng.choice(golds))]
    ]


class Memory(threading.Thread):
    """The largest resident memory of any worker of a pool, bytes."""

    def __init__(self, pool: RewardPool):
        super().__init__(daemon=True)
        self.pool, self.largest, self.done = pool, 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            started = [pid for slot in self.pool.slots for pid in (slot.process.pid, *descendants(slot.process.pid))]
            for child in started:
                try:
                    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{child}/status").read_text())
                except OSError:  # it was replaced meanwhile
                    continue
                self.largest = max(self.largest, 1024 * int(peak[1]) if peak else 0)


def under_attack(cases: list[Case], limit: float) -> list[Figure]:
    """Each in turn on warm workers: what it costs, and what it earns."""
    n = len(cases)
    pool = RewardPool(MATH, workers=2, timeout=limit, memory_gib=MEMORY_GIB)
    pool.score([cases[0].problem], [r"\boxed{8}"], [ENDED])
    memory, longest, verdicts = Memory(pool), 0.0, []
    memory.start()
    start = time.perf_counter()
    for case in cases:  # one at a time: the time of each is seen
        before = time.perf_counter()
        verdicts += pool.score([case.problem], [case.text], [ENDED])
        longest = max(longest, time.perf_counter() - before)
    seconds = time.perf_counter() - start
    memory.done.set()
    alive = pool.score([Problem("after", "?", "7")], [r"\boxed{7}"], [ENDED])[0].reward
    pool.close()
    return [
        Figure("hostile predictions", n, ""),
        at_most("hostile: verdicts missing", n - len(verdicts), "", 0),
        at_most("hostile: score above 0", sum(v.reward > 0 for v in verdicts), "", 0),
        at_most("hostile: longest, beyond the limit", max(longest - limit, 0.0), "s", 1.0),
        at_most("hostile: largest memory of a worker", memory.largest / 2**30, "GiB", MEMORY_GIB + 0.25),
        Figure("hostile: timeouts", pool.timeouts, ""),
        Figure("hostile: errors", pool.errors, ""),
        Figure("hostile: mean time", 1000 * seconds / n, "ms"),
        at_least("hostile: scored rightly afterwards", alive, "", 1),
    ]


def throughput(name: str, problems: list[Problem], target: float | None) -> list[Figure]:
    """Answers as models write them, every other one wrong, on two warm workers: nothing is remembered."""
    chosen = random.Random(2).choices(problems, k=BATCH)
    problems = [Problem(f"{i}-{p.id}", p.prompt, p.answer) for i, p in enumerate(chosen)]
    forms = list(FORMS.values())
    texts = [
        "Step by step. " * 50 + forms[i % len(forms)](problems[i - i % 2].answer)  # of the one before, or its own
        for i in range(BATCH)
    ]
    pool = RewardPool(MATH, workers=2)
    pool.score(problems[:64], [FORMS["boxed"]("8")] * 64, [ENDED] * 64)
    completion = Completion(list(range(500)), [-0.5] * 500, True)
    start = time.perf_counter()
    verdicts = pool.score(problems, texts, [completion] * BATCH)
    rate = BATCH / (time.perf_counter() - start)
    pool.close()
    assert all(verdict.outcome == "scored" for verdict in verdicts)
    label = f"throughput, {name}, 2 workers"
    return [Figure(label, rate, "/s") if target is None else at_least(label, rate, "/s", target)]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--benchmarks-dir", type=Path)
    arguments = options.parse_args()
    if arguments.quick:
        files = {"own rows": [Problem(f"own-{i}", "?", answer) for i, answer in enumerate(OWN_ROWS)]}
    elif arguments.benchmarks_dir is None:
        options.error("--benchmarks-dir is needed: only --quick has rows of its own")
    else:
        files = {path.stem: read(path) for path in sorted(arguments.benchmarks_dir.glob("*.jsonl"))}
    figures: list[Figure] = []
    exceptions: list[dict[str, str]] = []
    answers: list[Problem] = []
    for name, problems in files.items():
        if "references" in problems[0].metadata:
            continue
        measured, exceptional = gold_answers(name, problems)
        figures, exceptions, answers = figures + measured, exceptions + exceptional, answers + problems
    figures += under_attack(hostile(56, 1), 1.0) if arguments.quick else under_attack(hostile(1000, 1), 5.0)
    figures += throughput("rows of all files", answers, 500)
    hard = [p for p in answers if number(p.answer) is None]
    figures += throughput("answers that are no number", hard, None)
    write("rewards-quick" if arguments.quick else "rewards", figures, exceptions=exceptions)


if __name__ == "__main__":
    main()
