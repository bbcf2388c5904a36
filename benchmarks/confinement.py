"""What confinement costs: verdicts a second, the start, and memory, with it and without, in turns.

    python benchmarks/confinement.py [--quick] [--before FOLDER]

``--before`` is a checkout of a revision that had no confinement: the same responses are scored by its pool, in a
process of its own. Without it, ``before`` is today's pool with the limits alone.
Where a reward runs text, a response that may do something when it is run has a process of its own now: the row of
such responses alone has the price of that, and no target.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import reasoning_gym
from figures import ROOT, Figure, median_ratio, parser, write

from oblr.rewards.confinement import LEVELS, available

#: The problems of reasoning-gym that are judged, how the reward is made, and how many responses it has.
CASES = {
    "exact": ("chain_sum", "ExactReward(AnswerFormat())", 20_000),
    "math": ("chain_sum", "MathReward(BoxedFormat())", 2_000),
    "reasoning_gym, chain_sum": ("chain_sum", "ReasoningGymReward(AnswerFormat())", 10_000),
    "reasoning_gym, spiral_matrix (evaluates)": ("spiral_matrix", "ReasoningGymReward(AnswerFormat())", 10_000),
    "reasoning_gym, simple_integration (evaluates)": ("simple_integration", "ReasoningGymReward(AnswerFormat())", 900),
    "reasoning_gym, a process each": ("spiral_matrix", "ReasoningGymReward(AnswerFormat())", 300),
    "a user's": ("chain_sum", "my_reward.reward", 20_000),
}
#: Of which all answers have something more, with which they may do something when they are run.
EACH = "reasoning_gym, a process each"
#: The one of docs/own.md.
USERS = """
def reward(problem, text, completion):
    right = text.strip().endswith(problem.answer)
    return {"right": float(right), "ended": 0.1 * completion.finished}
"""
#: What is run in a process of its own: a pool of the package on its path.
PROGRAM = """
import json, sys, time
from oblr.problem import Completion, Problem
from oblr.rewards.answer import AnswerFormat, BoxedFormat, ExactReward
from oblr.rewards.math import MathReward
from oblr.rewards.pool import RewardPool
from oblr.rewards.reasoning_gym import ReasoningGymReward
import my_reward
entries, how, count, more, settings = json.load(sys.stdin)
reward = eval(how)
boxed = "Boxed" in how
ended = Completion(list(range(200)), [-0.5] * 200, True)
problems = [Problem(f"{i}", e["question"], e["answer"], e) for i in range(count) for e in [entries[i % len(entries)]]]
def text(i, p):
    answer = (p.answer if i % 2 else p.answer + "1") + more
    return "Step by step. " * 50 + (f"\\\\boxed{{{answer}}}" if boxed else f"Answer: {answer}")
texts = [text(i, p) for i, p in enumerate(problems)]
begun = time.perf_counter()
pool = RewardPool(reward, workers=2, **settings)
pool.timeout = 60.0
pool.probe(problems[:2], texts[:2], [ended] * 2)
started = time.perf_counter() - begun
while True:  # until both processes are there
    pool.cache.clear()
    pool.probe(problems[:64], texts[:64], [ended] * len(problems[:64]))
    if all(slot.loaded for slot in getattr(pool, "slots", ())) and len(getattr(pool, "slots", (0, 0))) == 2:
        break
pool.cache.clear()
begun = time.perf_counter()
verdicts = pool.probe(problems, texts, [ended] * count)
rate = count / (time.perf_counter() - begun)
assert all(v.outcome == "scored" for v in verdicts), [v for v in verdicts if v.outcome != "scored"][:1]
def below(pid):
    try:
        own = [int(c) for t in open(f"/proc/{pid}/task/{pid}/children").read().split() for c in [t]]
        pss = next(int(l.split()[1]) for l in open(f"/proc/{pid}/smaps_rollup") if l.startswith("Pss:"))
    except OSError:
        return 0
    return pss + sum(map(below, own))
roots = [s.process.pid for s in pool.slots] if hasattr(pool, "slots") else [pool.process.pid]
print(json.dumps([rate, started, sum(map(below, roots)) / 1024]))
pool.close()
"""


def measured(case: str, source: Path, folder: str, settings: dict, scale: float) -> list[float]:
    """Verdicts a second, seconds until the first verdict, MiB of all processes that score."""
    task, how, count = CASES[case]
    entries = [e for e, _ in zip(reasoning_gym.create_dataset(task, size=50, seed=1), range(50), strict=False)]
    entries = [json.loads(json.dumps(e, default=str)) for e in entries]
    given = json.dumps([entries, how, max(20, int(count * scale)), " .x" * (case == EACH), settings])
    path = os.pathsep.join([str(source / "src"), folder])
    run = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return json.loads(run.stdout)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--before", type=Path)
    arguments = options.parse_args()
    figures: list[Figure] = []
    before = ({}, arguments.before) if arguments.before else ({"trust": True}, ROOT)
    with TemporaryDirectory() as folder:
        (Path(folder) / "my_reward.py").write_text(USERS)
        for case in CASES:
            levels = [level for level in LEVELS[:-1] if available(level)][: 1 if arguments.quick else None]
            ways = {"before": before} | {level: ({"level": level}, ROOT) for level in levels}
            found: dict[str, list[list[float]]] = {way: [] for way in ways}
            for _ in range(1 if arguments.quick else 6):
                for way, (settings, source) in ways.items():
                    found[way].append(measured(case, source, folder, settings, 0.1 if arguments.quick else 1.0))
            for way, runs in found.items():
                figures.append(Figure(f"{case}: {way}: verdicts", median(rate for rate, _, _ in runs), "/s"))
                figures.append(Figure(f"{case}: {way}: until the first verdict", median(s for _, s, _ in runs), "s"))
                figures.append(Figure(f"{case}: {way}: memory", median(m for _, _, m in runs), "MiB"))
                if way != "before":
                    name, least = f"{case}: {way}: verdicts over before", None if case == EACH else 0.8
                    ratios = [one[0] / other[0] for one, other in zip(runs, found["before"], strict=True)]
                    figures.append(median_ratio(name, ratios, "", least=least))
    write(
        "confinement-quick" if arguments.quick else "confinement",
        figures,
        before=arguments.before.name if arguments.before else "trust",
    )


if __name__ == "__main__":
    main()
