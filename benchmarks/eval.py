"""Can the figures of src/eval.py be trusted? The same again, after a kill, in other company; and their intervals.

    python benchmarks/eval.py [--quick]

- Rerun: the share of problems whose responses are, token by token, those of a first evaluation of the pocket policy
  under vLLM: in a second one, in one that was killed and went on, with other chunks, of fewer problems, and by
  transformers' engine. Seeds are fixed by problem; what differs is rounding in batches of another shape.
- Coverage: how often a 95 % interval holds the truth. Problems are drawn with chances of success from a Beta
  distribution (most are nearly always or nearly never solved), tries from those. Beside the bootstrap that eval.py has,
  with a problem at each end of the scale: the plain percentile bootstrap. Of paired differences too, and how often
  their test is wrong at 5 %.
- Figures of the pocket policy.

``--quick`` has transformers' engine and few draws.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from figures import ROOT, Estimate, Figure, asked_to_be_quick, at_least, write

from oblr.metrics.aggregate import Interval
from oblr.metrics.problems import bootstrap_interval, paired_difference

POCKET = ROOT / "models" / "pocket"
TRUTHS, TRIES = (0.02, 0.1, 0.5, 0.9, 0.98), (1, 4, 16)
#: Parameters of the Beta distribution sum to this: chances of success are mostly near 0 or near 1.
SPREAD = 1.0
#: What the first evaluation has, beyond eval.py's defaults.
POCKET_SETTINGS = ("samples=16", "k=[4,16]")


def command(folder: Path, *overrides: str) -> list[str]:
    return [sys.executable, "src/eval.py", f"paths.output_dir={folder}", *overrides]


def evaluate(folder: Path, *overrides: str) -> dict[str, dict[str, Interval]]:
    """Run ``src/eval.py``; returns the figures of every benchmark."""
    subprocess.run(command(folder, *overrides), cwd=ROOT, check=True)
    summaries = {path.stem: json.loads(path.with_suffix(".json").read_text()) for path in folder.glob("*.jsonl")}
    return {
        name: {figure: Interval(**ends) for figure, ends in summary["figures"].items()}
        for name, summary in sorted(summaries.items())
    }


def kill(folder: Path, *overrides: str) -> None:
    """SIGKILL an evaluation as soon as it has written a chunk."""
    process = subprocess.Popen(command(folder, *overrides), cwd=ROOT)
    while process.poll() is None and not any(path.stat().st_size for path in folder.glob("*.jsonl")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def responses(folder: Path) -> dict[str, list[str]]:
    """Of every problem, by id."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().split("\n") if line]
    return {row["id"]: row["responses"] for row in map(json.loads, lines)}


def same(first: Path, second: Path) -> float:
    """Per cent of the second's problems whose responses are the first's."""
    ours, theirs = responses(first), responses(second)
    return 100 * sum(ours[problem] == found for problem, found in theirs.items()) / len(theirs)


def estimates(title: str, figures: dict[str, dict[str, Interval]]) -> Iterator[Estimate]:
    for benchmark, row in figures.items():
        for name, (mean, low, high) in row.items():
            yield Estimate(f"{title}, {benchmark}: {name}", mean, f"[{low:.3g}, {high:.3g}]", low=low, high=high)


def reruns(folder: Path, quick: bool) -> list[Figure]:
    """Evaluations of the pocket policy."""
    first = folder / "first"
    settings = (f"model='{POCKET}'", *POCKET_SETTINGS, *(("rollout.engine=hf", "limit=16", "chunk=8") if quick else ()))
    figures: list[Figure] = list(estimates("pocket", evaluate(first, *settings)))

    def again(name: str, *overrides: str) -> float:
        evaluate(folder / name, *settings, *overrides)
        return same(first, folder / name)

    if not quick:
        figures.append(at_least("rerun: problems with the same responses", again("again"), "%", 100))
        kill(folder / "killed", *settings)
        sampled = len(responses(folder / "killed"))
        figures.append(Figure("killed: problems that had been sampled", sampled, f"of {len(responses(first))}"))
        figures.append(at_least("killed and resumed: problems with the same", again("killed"), "%", 100))
        figures.append(Figure("of 100 problems: problems with the same", again("fewer", "limit=100"), "%"))
        figures.append(Figure("transformers: problems with the same", again("hf", "rollout.engine=hf"), "%"))
    figures.append(Figure("other chunks: problems with the same responses", again("chunks", "chunk=5"), "%"))
    return figures


METHODS = {
    "with ends": lambda scores: bootstrap_interval(scores.mean(1), (0.0, 1.0)),
    "plain": lambda scores: bootstrap_interval(scores.mean(1)),
}


def draw(random: np.random.Generator, chances: np.ndarray, tries: int) -> np.ndarray:
    """Tries at problems [P, k], 0 or 1."""
    return (random.random((len(chances), tries)) < chances[:, None]).astype(float)


def coverage(problems: int, repeats: int) -> Iterator[Figure]:
    """How often intervals hold the truth, in per cent, and their mean width in points."""
    random, lowest = np.random.default_rng(problems), dict.fromkeys(METHODS, 100.0)
    for tries in TRIES:
        for truth in TRUTHS:
            held, widths = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0.0)
            for _ in range(repeats):
                scores = draw(random, random.beta(truth * SPREAD, (1 - truth) * SPREAD, problems), tries)
                for name, method in METHODS.items():
                    _, low, high = method(scores)
                    held[name] += low <= truth <= high
                    widths[name] += high - low
            for name in METHODS:
                value, case = 100 * held[name] / repeats, f"{problems} problems, {tries} tries, truth {truth:g}"
                lowest[name] = min(lowest[name], value)
                width = 100 * widths[name] / repeats
                yield Figure(f"coverage, {name}: {case}", value, f"%, {width:.1f} points wide")
    for name, value in lowest.items():
        title = f"lowest coverage, {name}: {problems} problems"
        yield at_least(title, value, "%", 93) if name == "with ends" else Figure(title, value, "%")


def paired(problems: int, repeats: int, tries: int = 4) -> Iterator[Figure]:
    """The same problems tried by two policies: without a difference, and with one of 5 points."""
    random = np.random.default_rng(problems)
    for truth in TRUTHS[:3]:
        for gain in (0.0, 0.05):
            held = rejected = 0
            for _ in range(repeats):
                chances = random.beta(truth * SPREAD, (1 - truth) * SPREAD, problems)
                better = chances + (1 - chances) * gain / (1 - truth)
                first, second = (draw(random, c, tries).mean(1) for c in (chances, better))
                difference = paired_difference(first, second)
                held += difference.low - 1e-12 <= gain <= difference.high + 1e-12
                rejected += difference.p_value <= 0.05
            case = f"{problems} problems, {tries} tries, truth {truth:g} and {truth + gain:g}"
            yield Figure(f"coverage of a difference: {case}", 100 * held / repeats, "%")
            yield Figure(f"differences found at 5 %: {case}", 100 * rejected / repeats, "%")


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    repeats: Sequence[tuple[int, int]] = [(30, 10)] if quick else [(30, 1000), (500, 400)]
    with tempfile.TemporaryDirectory() as name:
        figures = reruns(Path(name), quick)
    for problems, times in repeats:
        figures += [*coverage(problems, times), *paired(problems, times)]
    write("eval-quick" if quick else "eval", figures)


if __name__ == "__main__":
    main()
