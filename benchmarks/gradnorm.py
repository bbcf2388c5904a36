"""What do exact per-sequence gradient norms cost? Whole updates, side by side on the same packed batch.

    python benchmarks/gradnorm.py [--quick] [--lengths 128 512 1024 2048]

Every update is timed in turn, round after round, and compared with the plain forward and backward of its own round;
the median ratio is reported. Memory is the growth of a process that runs one kind of update alone.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import Figure, at_most, write
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.gradnorm.measure import GradNorms
from oblr.model import TokenScorer
from oblr.packing import PackedBatch, pack
from oblr.types import Completion, Problem, Rollout

SEQUENCES, GROUP_SIZE, PROMPT, VOCAB = 8, 4, 16, 8192
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
Update = Callable[[], None]


def model() -> Qwen3ForCausalLM:
    """30 M parameters, untied."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=7,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=False,
        max_position_embeddings=8192,
    )
    return Qwen3ForCausalLM(config).train()


def rollouts(length: int) -> list[Rollout]:
    tokens = torch.randint(VOCAB, (SEQUENCES, length), generator=torch.Generator().manual_seed(1)).tolist()
    completions = [Completion(row[PROMPT:], [0.0] * (length - PROMPT), True) for row in tokens]
    return [
        Rollout(Problem("", "", ""), row[:PROMPT], completion, "", 0.0)
        for row, completion in zip(tokens, completions, strict=True)
    ]


def coefficients(weights: Tensor) -> Tensor:
    return GradientWeightedBaseline()(REWARDS, weights.view(-1, GROUP_SIZE)).flatten() / GROUP_SIZE


def updates(lm: Qwen3ForCausalLM, length: int) -> dict[str, Update]:
    """Every kind of update on one batch; each leaves the gradient in ``.grad``."""
    scorer, batch = TokenScorer(lm, 1.0), rollouts(length)
    packed, singles = pack(batch), [pack([rollout]) for rollout in batch]

    def backward(packed: PackedBatch, weights: Tensor) -> None:
        lm.zero_grad()
        (scorer(packed).logprobs * weights[packed.target_segments.ids]).sum().backward()

    def plain() -> None:
        backward(packed, torch.ones(SEQUENCES))

    def loop() -> None:
        norms = []
        for single in singles:
            backward(single, torch.ones(1))
            norms.append(sum(p.grad.square().sum() for p in lm.parameters()))
        backward(packed, coefficients(torch.stack(norms)))

    def ours(**settings: object) -> Update:
        tier = GradNorms(**settings)

        def update() -> None:
            lm.zero_grad()
            with tier.score(scorer, lm, [packed], GROUP_SIZE) as scores:
                scores.backward(coefficients(scores.weights))

        return update

    return {
        "plain": plain,
        "loop + update": loop,
        "one pass, exact": ours(tier="exact", passes="one"),
        "one pass, sketch": ours(tier="sketch", passes="one"),
        "two passes, exact": ours(tier="exact", passes="two"),
        "two passes, sketch": ours(tier="sketch", passes="two"),
        "logit": ours(tier="logit"),
        "length": ours(tier="length"),
    }


#: tokens a sequence → rounds
ROUNDS = {128: 5, 512: 1, 1024: 1, 2048: 1}
#: time over plain, at T ≤ 512; memory over plain
TARGETS = {
    "one pass, exact": (1.20, 1.6),
    "one pass, sketch": (1.05, 1.6),
    "two passes, exact": (2.1, 1.05),
    "two passes, sketch": (1.75, 1.05),
    "logit": (1.03, None),
    "length": (1.03, None),
}


def times(length: int, rounds: int) -> dict[str, float]:
    """Median ratio of each update's time to plain's in the same round."""
    kinds = updates(model(), length)
    for update in kinds.values():
        update()
    ratios: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        seconds = {}
        for name, update in kinds.items():
            start = time.perf_counter()
            update()
            seconds[name] = time.perf_counter() - start
        for name, spent in seconds.items():
            ratios[name].append(spent / seconds["plain"])
    return {name: statistics.median(values) for name, values in ratios.items()}


def errors(length: int) -> dict[str, float]:
    """Largest relative error of ``n_i`` (exact), and root mean square error (sketch), against one backward each."""
    lm = model()
    scorer, batch = TokenScorer(lm, 1.0), rollouts(length)
    oracle = []
    for rollout in batch:
        lm.zero_grad()
        scorer(pack([rollout])).logprobs.sum().backward()
        oracle.append(sum(p.grad.double().square().sum() for p in lm.parameters()))

    def relative(step: int, **settings: object) -> Tensor:
        with GradNorms(**settings).score(scorer, lm, [pack(batch)], GROUP_SIZE, step) as scores:
            return scores.weights / torch.stack(oracle) - 1

    sketches = torch.stack([relative(step, tier="sketch", passes="one") for step in range(8)])
    return {
        "one pass, exact": relative(0, tier="exact", passes="one").abs().max().item(),
        "two passes, exact": relative(0, tier="exact", passes="two").abs().max().item(),
        "one pass, sketch": sketches.square().mean().sqrt().item(),
    }


def grown(kind: str, length: int) -> None:
    """Print by how many KiB two updates make this process grow."""
    update = updates(model(), length)[kind]
    before = peak_memory()
    update()
    update()
    print(peak_memory() - before)


def peak_memory() -> int:
    """Largest resident size of this process so far, KiB; unlike getrusage's, not inherited from the parent."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def memory(kind: str, length: int) -> float:
    command = [sys.executable, __file__, "--memory", kind, "--length", str(length)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(ROUNDS))
    args = parser.parse_args()
    if args.memory:
        return grown(args.memory, args.length)
    figures: list[Figure] = []
    for length in [128] if args.quick else args.lengths:
        ratios = times(length, 2 if args.quick else ROUNDS[length])
        for kind, ratio in ratios.items():
            name = f"T={length}: time, {kind}"
            bounded = kind in TARGETS and length <= 512
            figures.append(
                at_most(name, ratio, "× plain", TARGETS[kind][0]) if bounded else Figure(name, ratio, "× plain")
            )
        figures.append(
            Figure(
                f"T={length}: loop + update over one pass, exact",
                ratios["loop + update"] / ratios["one pass, exact"],
                "×",
            )
        )
    length = 128 if args.quick else args.lengths[0]
    for kind, error in errors(length).items():
        bound = 0.05 if "sketch" in kind else 1e-5
        figures.append(at_most(f"T={length}: relative error of n_i, {kind}", error, "", bound))
    if not args.quick:
        plain = memory("plain", length)
        for kind, (_, bound) in TARGETS.items():
            name, ratio = f"T={length}: peak memory, {kind}", memory(kind, length) / plain
            figures.append(Figure(name, ratio, "× plain") if bound is None else at_most(name, ratio, "× plain", bound))
    write("gradnorm-quick" if args.quick else "gradnorm", figures)


if __name__ == "__main__":
    main()
