"""Are rewards scored while the engine samples? Rollouts and rewards together, against the longer of the two alone.

    python benchmarks/overlap.py [--quick]

vLLM on the CPU samples the pocket policy's responses, 16 at once of 256, and two processes score them with a reward
that sleeps: for all of them half as long as that takes, as long, and twice as long. Each round times the engine alone,
the reward alone on the same responses, and both together as a step has them; ratios are paired, round by round. The
target is that of a step: at most 10 % more than the longer of the two. No response can be scored before it has ended:
beside it is the least that this makes of the ratio, from when each did end. ``--quick``: 32 responses, two rounds, one
reward.
"""

import heapq
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from figures import ROOT, Figure, asked_to_be_quick, median_ratio, write

from oblr.batch.types import Sampling
from oblr.data.ends import stopped
from oblr.data.procedural import ReasoningGymProblems
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.problem import Completion, Problem
from oblr.rewards.pool import RewardPool
from oblr.rollout.vllm import VLLMEngine

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


def soonest(ended: Sequence[float], each: float) -> float:
    """When the last response has been scored if scoring takes ``each``, and begins when a response has ended."""
    free = [0.0] * WORKERS
    for end in sorted(ended):
        heapq.heapreplace(free, max(free[0], end) + each)
    return max(free)


def rounds(count: int, prompts: int, slower: Sequence[float]) -> Iterator[tuple[float, float, float, float, float]]:
    """How long the reward takes over the engine; seconds of both alone, together, and at least together."""
    from overlap import Sleeping  # as the processes that score know it, to which this file is no __main__

    tokenizer = load_tokenizer(str(POCKET))
    problems = list(ReasoningGymProblems("chain_sum", prompts, 1, "{expression} =\n", PARAMS))
    asked, sampling = [tokenizer.encode(problem.prompt) for problem in problems], Sampling(GROUP_SIZE, 1.0, 64, (0,))
    engine = VLLMEngine(str(POCKET), "float32", 128, max_num_seqs=AT_ONCE)
    engine.start()
    engine.sync(PolicyModel(load_model(str(POCKET), "float32"), 1.0).weights(), 1)

    def read(place: int, completion: Completion) -> tuple[Problem, str, Completion]:
        completion, text = stopped(tokenizer, completion, sampling)
        return problems[place // GROUP_SIZE], text, completion

    def sampled(step: int) -> list[Completion]:
        seeds = [10_000 * step + 100 * q for q in range(prompts)]
        return [one for group in engine.generate(asked, sampling, seeds) for one in group]

    def together(step: int) -> tuple[list[float], list[float]]:
        seeds, start, ended = [10_000 * step + 100 * q for q in range(prompts)], time.perf_counter(), list[float]()

        def done(query: int, j: int, one: Completion) -> None:
            ended.append(time.perf_counter() - start)
            scoring.add(query * GROUP_SIZE + j, one)

        with pool.scoring(read) as scoring:
            groups = engine.generate(asked, sampling, seeds, done)
            return [verdict.reward for _, verdict in scoring.scored([one for group in groups for one in group])], ended

    sampled(0)  # warms it up
    count_all = prompts * GROUP_SIZE
    pause = timed(sampled, 0)[0] * WORKERS / count_all
    for factor in slower:
        pool = RewardPool(Sleeping(factor * pause), workers=WORKERS, timeout=60)
        texts = ["x"] * max(WORKERS, int(4 / factor / pause))
        while len(pool.slots) < WORKERS:  # a second process is started once scoring has taken as long as its start
            pool.score([problems[0]] * len(texts), texts, [Completion([0], [0.0], True)] * len(texts))
        for step in range(1, count + 1):
            alone, found = timed(sampled, step)
            responses = [read(place, one) for place, one in enumerate(found)]
            reward, verdicts = timed(pool.score, *zip(*responses, strict=True))
            both, (rewards, ended) = timed(together, step)
            if rewards != [verdict.reward for verdict in verdicts]:
                sys.exit("rewards differ")
            yield factor, alone, reward, both, soonest(ended, reward * WORKERS / count_all)
        pool.close()
    engine.close()


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    sys.path.insert(0, str(Path(__file__).parent))
    slower = (1.0,) if quick else (0.5, 1.0, 2.0)
    taken = list(rounds(*((1, 2) if quick else (11, 32)), slower))
    figures = []
    for factor in slower:
        of_factor = [seconds for found, *seconds in taken if found == factor]
        middle = [sorted(column)[len(of_factor) // 2] for column in zip(*of_factor, strict=True)]
        reward = f"reward {factor:g} of the engine"
        figures += [
            Figure(f"{reward}: {what}, median", seconds, "s")
            for what, seconds in zip(("engine alone", "reward alone", "together"), middle, strict=False)
        ]
        one_by_one = [(alone + scoring) / max(alone, scoring) for alone, scoring, *_ in of_factor]
        least = [bound / max(alone, scoring) for alone, scoring, _, bound in of_factor]
        ratios = [both / max(alone, scoring) for alone, scoring, both, _ in of_factor]
        figures.append(median_ratio(f"{reward}: one after the other / longer of both", one_by_one, ""))
        figures.append(median_ratio(f"{reward}: least / longer of both", least, ""))
        figures.append(median_ratio(f"{reward}: together / longer of both", ratios, "", most=1.1))
    write("overlap-quick" if quick else "overlap", figures, rounds=taken)


if __name__ == "__main__":
    main()
