"""Are rewards scored while the engine samples? Rollouts and rewards together, against the longer of the two alone.

    python benchmarks/overlap.py [--quick]

vLLM on the CPU samples the pocket policy's responses, 16 at once of 256, and a reward that sleeps takes about as long
for all of them as that. Each round times the engine alone, the reward alone on the same responses, and both together as
a step has them; ratios are paired, round by round. The target is that of a step: at most 10 % more than the longer of
the two. ``--quick``: 32 responses, two rounds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from report import ROOT, Figure, median_ratio, write

from oblr.data.ends import stopped
from oblr.data.procedural import ReasoningGymProblems
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import TokenScorer
from oblr.problem import Completion, Problem
from oblr.rewards.pool import RewardPool
from oblr.rollout.vllm import VLLMEngine
from oblr.types import Sampling

T = TypeVar("T")
POCKET = ROOT / "models" / "pocket"
GROUP_SIZE, WORKERS, AT_ONCE = 8, 2, 16
PARAMS = {"min_terms": 3, "max_terms": 6, "min_digits": 1, "max_digits": 2}


class Sleeping:
    """A reward that takes its time, and no processor's."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __call__(self, problem: Problem, text: str, completion: Completion) -> float:
        time.sleep(self.seconds)
        return float(len(text))


def timed(action: Callable[..., T], *arguments: object) -> tuple[float, T]:
    """Seconds that it takes, and what it gives."""
    start = time.perf_counter()
    found = action(*arguments)
    return time.perf_counter() - start, found


def rounds(count: int, prompts: int) -> Iterator[tuple[float, float, float]]:
    """Seconds of the engine alone, of the reward alone, and of both together."""
    from overlap import Sleeping  # as the processes that score know it, to which this file is no __main__

    tokenizer = load_tokenizer(str(POCKET))
    problems = list(ReasoningGymProblems("chain_sum", prompts, 1, "{expression} =\n", PARAMS))
    asked, sampling = [tokenizer.encode(problem.prompt) for problem in problems], Sampling(GROUP_SIZE, 1.0, 64, (0,))
    engine = VLLMEngine(str(POCKET), "float32", 128, max_num_seqs=AT_ONCE)
    engine.start()
    engine.sync(TokenScorer(load_model(str(POCKET), "float32"), 1.0).weights(), 1)

    def read(place: int, completion: Completion) -> tuple[Problem, str, Completion]:
        completion, text = stopped(tokenizer, completion, sampling)
        return problems[place // GROUP_SIZE], text, completion

    def sampled(step: int) -> list[Completion]:
        seeds = [10_000 * step + 100 * q for q in range(prompts)]
        return [one for group in engine.generate(asked, sampling, seeds) for one in group]

    def together(step: int) -> list[float]:
        seeds = [10_000 * step + 100 * q for q in range(prompts)]
        with pool.scoring(read) as scoring:
            groups = engine.generate(asked, sampling, seeds, lambda q, j, one: scoring.add(q * GROUP_SIZE + j, one))
            return [verdict.reward for _, verdict in scoring.scored([one for group in groups for one in group])]

    sampled(0)  # warms it up
    pause = timed(sampled, 0)[0] * WORKERS / (prompts * GROUP_SIZE)
    pool = RewardPool(Sleeping(pause), workers=WORKERS, timeout=60)
    texts = ["x"] * max(WORKERS, int(4 / pause))
    while len(pool.slots) < WORKERS:  # a second process is started once scoring has taken as long as its start
        pool.score([problems[0]] * len(texts), texts, [Completion([0], [0.0], True)] * len(texts))
    for step in range(1, count + 1):
        alone, found = timed(sampled, step)
        responses = [read(place, one) for place, one in enumerate(found)]
        reward, verdicts = timed(pool.score, *zip(*responses, strict=True))
        both, rewards = timed(together, step)
        if rewards != [verdict.reward for verdict in verdicts]:
            sys.exit("rewards differ")
        yield alone, reward, both
    pool.close()
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    sys.path.insert(0, str(Path(__file__).parent))
    taken = list(rounds(*((1, 2) if quick else (11, 32))))
    middle = [sorted(column)[len(taken) // 2] for column in zip(*taken, strict=True)]
    figures = [
        Figure(f"{what}, median", seconds, "s")
        for what, seconds in zip(("engine alone", "reward alone", "together"), middle, strict=True)
    ]
    one_by_one = [(alone + reward) / max(alone, reward) for alone, reward, _ in taken]
    ratios = [both / max(alone, reward) for alone, reward, both in taken]
    figures.append(median_ratio("one after the other / longer of both", one_by_one, ""))
    figures.append(median_ratio("together / longer of both", ratios, "", most=1.1))
    write("overlap-quick" if quick else "overlap", figures, rounds=taken)


if __name__ == "__main__":
    main()
