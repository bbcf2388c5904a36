"""How many responses should an engine begin at once where its KV cache does not hold all of them to their ends?

    python benchmarks/preemption.py [--quick]

vLLM begins a response as soon as there is room for its prompt. Where room runs out, it gives up the youngest and
computes it again later. A limit that keeps the longest from this leaves room unused where responses are short.

First, vLLM itself: the pocket policy's responses in a cache of a few blocks, how often one was given up, and whether
the scheduler below says about the same; it knows nothing of what vLLM finds in its cache again. Then that scheduler,
with a pass of the engine as ``plan=true`` reckons it, on the sizes of our experiments: seconds of a step's rollouts for
each limit, against the best of them. ``--quick``: fewer prompts for vLLM, and one experiment.
"""

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

from figures import ROOT, Figure, asked_to_be_quick, at_most, write
from hydra import compose, initialize_config_dir

from oblr.batch.types import Sampling
from oblr.commands.compose import register_resolvers
from oblr.commands.plan import draft, speed_of
from oblr.data.procedural import ReasoningGymProblems
from oblr.plan.duration import Serving, engine_pass
from oblr.plan.memory import ENGINE_SEQUENCES, ENGINE_TOKENS
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.rollout.vllm import VLLMEngine

POCKET = ROOT / "models" / "pocket"
#: Tokens of a block of the cache, on a GPU and on a CPU.
BLOCK, CPU_BLOCK = 16, 32
EXPERIMENTS = ["oblr_qwen3_4b", "oblr_qwen3_8b", "oblr_qwen3_8b_lora"]
#: Tokens of a prompt of GSM8K, about, and of the longest response.
PROMPT, LONGEST = 150, 1024


@dataclass(eq=False)
class Response:
    """One that is sampled: ``length`` tokens after ``prompt``; ``known`` tokens so far, ``computed`` of them cached."""

    prompt: int
    length: int
    known: int = 0
    computed: int = 0
    blocks: int = 0

    def __post_init__(self) -> None:
        self.known = self.prompt


@dataclass(frozen=True)
class Pass:
    """A forward pass: sequences in it, tokens computed, tokens whose keys and values are read, responses given up."""

    sequences: int
    tokens: int
    kept: int
    given_up: int


class Scheduler:
    """vLLM's, first come first served, without shared prefixes.

    Args:
        blocks: of the KV cache.
        at_once: most responses that are sampled at once.
        block: tokens of a block.
    """

    def __init__(self, responses: list[Response], blocks: int, at_once: int, block: int = BLOCK):
        self.waiting, self.running = deque(responses), list[Response]()
        self.blocks, self.at_once, self.block = blocks, at_once, block

    def passes(self) -> list[Pass]:
        """Until all have ended."""
        found = []
        while self.waiting or self.running:
            found.append(self.forward())
        return found

    def forward(self) -> Pass:
        self.left, given_up, self.chosen = ENGINE_TOKENS, 0, list[tuple[Response, int]]()
        for one in list(self.running):
            while one in self.running and self.left and not self.takes(one):
                last = self.running.pop()
                self.blocks, last.blocks, last.computed, given_up = self.blocks + last.blocks, 0, 0, given_up + 1
                self.waiting.appendleft(last)
        while self.waiting and not given_up and len(self.running) < self.at_once and self.left:
            if not self.takes(self.waiting[0]):
                break
            self.running.append(self.waiting.popleft())
        for one, new in self.chosen:
            one.computed += new
            one.known += one.computed == one.known
            if one.known == one.prompt + one.length:  # the last token is sampled and never computed
                self.blocks += one.blocks
                self.running.remove(one)
        kept = sum(one.computed for one, _ in self.chosen)
        return Pass(len(self.chosen), sum(new for _, new in self.chosen), kept, given_up)

    def takes(self, one: Response) -> bool:
        """Whether it has a part in this pass: the cache has room for what is computed of it."""
        new = min(one.known - one.computed, self.left)
        needed = math.ceil((one.computed + new) / self.block) - one.blocks
        if needed > self.blocks:
            return False
        self.blocks, one.blocks, self.left = self.blocks - needed, one.blocks + needed, self.left - new
        self.chosen.append((one, new))
        return True


class Small(VLLMEngine):
    """One whose cache has so many blocks."""

    def __init__(self, blocks: int, at_once: int):
        super().__init__(str(POCKET), "float32", 128, max_num_seqs=at_once)
        self.blocks = blocks

    def _of_the_device(self) -> dict[str, Any]:
        return super()._of_the_device() | {"num_gpu_blocks_override": self.blocks, "block_size": CPU_BLOCK}


def real(prompts: int, blocks: int, at_once: int) -> list[Figure]:
    """Of vLLM, and of the schedule for responses as long as those that vLLM gave."""
    tokenizer = load_tokenizer(str(POCKET))
    params = {"min_terms": 3, "max_terms": 6, "min_digits": 1, "max_digits": 2}
    problems = ReasoningGymProblems("chain_sum", prompts, 1, "{expression} =\n", params)
    asked = [tokenizer.encode(problem.prompt) for problem in problems]
    engine = Small(blocks, at_once)
    engine.start()
    engine.sync(PolicyModel(load_model(str(POCKET), "float32"), 1.0).weights(), 1)
    scheduler, given_up = engine._llm.llm_engine.engine_core.engine_core.scheduler, []
    preempt = scheduler._preempt_request
    scheduler._preempt_request = lambda request, *rest, **named: given_up.append(1) or preempt(request, *rest, **named)
    groups = engine.generate(asked, Sampling(8, 1.0, 100, ()), list(range(0, 100 * prompts, 100)))
    engine.close()
    pairs = [(len(prompt), len(one.token_ids)) for prompt, group in zip(asked, groups, strict=True) for one in group]
    passes = Scheduler([Response(*pair) for pair in pairs], blocks - 1, at_once, CPU_BLOCK).passes()  # vLLM keeps one
    told = sum(each.given_up for each in passes)
    name = f"{len(pairs)} responses, {blocks} blocks, {at_once} at once: given up"
    return [
        Figure(f"{name} by vLLM", len(given_up), "times"),
        at_most(f"{name}, |scheduler / vLLM − 1|", abs(told / len(given_up) - 1), "", 0.2),
    ]


def on_paper(experiment: str) -> list[Figure]:
    """A step's rollouts on a rank, for responses of three kinds and each limit."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("train", overrides=[f"experiment={experiment}"])
    one, speed = draft(cfg), speed_of(cfg)
    count, blocks = one.batch.groups * one.batch.group_size, int(one.generating["KV cache"] / one.kv_token / BLOCK)
    serving = Serving(one.generating["engine weights"], one.kv_token, count, graphs=True)
    never, own = blocks * BLOCK // one.batch.longest, cfg.rollout.engines.vllm.max_num_seqs or ENGINE_SEQUENCES
    draw, figures = random.Random(1), list[Figure]()

    def seconds(lengths: list[int], limit: int) -> tuple[float, float]:
        """And how often a response is given up."""
        passes = Scheduler([Response(PROMPT, length) for length in lengths], blocks, limit).passes()
        each = (engine_pass(one.config, serving, one.parameters, speed, p.sequences, p.tokens, p.kept) for p in passes)
        return sum(each), sum(one.given_up for one in passes) / count

    for mean in (math.inf, 300, 150):
        lengths = [
            min(LONGEST, 1 + int(draw.expovariate(1 / mean))) if mean < math.inf else LONGEST for _ in range(count)
        ]
        found = {limit: seconds(lengths, limit) for limit in sorted({never, 128, 256, 512, ENGINE_SEQUENCES, own})}
        best = min(taken for taken, _ in found.values())
        name = f"{experiment}, {f'{mean} long on average' if mean < math.inf else f'all {LONGEST} long'}"
        for limit, (taken, given_up) in found.items():
            what = f"{name}, {limit} at once{', none given up' * (limit == never)}"
            ratio = f"{what}: seconds / best"
            figures.append(at_most(ratio, taken / best, "", 1.1) if limit == own else Figure(ratio, taken / best, ""))
            figures.append(Figure(f"{what}: given up", given_up, "times a response"))
    return figures


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    register_resolvers()
    cases = [(8, 40, 64)] if quick else [(32, 200, 256), (32, 80, 256), (32, 40, 64)]
    figures = [figure for case in cases for figure in real(*case)]
    for experiment in EXPERIMENTS[:1] if quick else EXPERIMENTS:
        figures += on_paper(experiment)
    write("preemption-quick" if quick else "preemption", figures)


if __name__ == "__main__":
    main()
