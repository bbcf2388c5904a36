"""What do exact per-sequence gradient norms cost? Whole updates, side by side on the same packed batch.

    python benchmarks/gradnorm.py [--quick] [--parts 128 512 1024 2048 ragged errors memory]

Every update is timed in turn, round after round, and compared with the plain forward and backward of its own round;
the median ratio of at least nine rounds is reported with its 95 % interval, and a target holds where all of that does.
Updates of a second are timed in three times as many rounds, for what disturbs them is not shorter. Above 512 tokens
only one pass and the proxies are timed. Memory is the growth of a process that runs one kind of update alone.
"""

import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from figures import Figure, at_most, median_ratio, parser, write
from ghost_clipping import GhostClipping
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.packing import PackedBatch, pack
from oblr.batch.types import Rollout
from oblr.gradnorm.measure import GradNorms
from oblr.policy.model import PolicyModel
from oblr.problem import Completion, Problem

SEQUENCES, GROUP_SIZE, PROMPT, VOCAB, LARGE_VOCAB = 8, 4, 16, 8192, 151_936
Update = Callable[[], None]
OURS: dict[str, dict[str, Any]] = {
    "one pass, exact": {"tier": "exact", "passes": "one"},
    "one pass, sketch": {"tier": "sketch", "passes": "one"},
    "two passes, exact": {"tier": "exact", "passes": "two"},
    "two passes, sketch": {"tier": "sketch", "passes": "two"},
    "logit": {"tier": "logit"},
    "length": {"tier": "length"},
}


def model(vocabulary: int = VOCAB) -> Qwen3ForCausalLM:
    """30 M parameters, untied."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
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


def rollouts(lengths: list[int]) -> list[Rollout]:
    """Random tokens, as many a sequence as ``lengths`` say, prompts included."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in lengths]
    return [
        Rollout(Problem("", "", ""), row[:PROMPT], Completion(row[PROMPT:], [0.0] * (len(row) - PROMPT), True), "", 0.0)
        for row in rows
    ]


def coefficients(weights: Tensor) -> Tensor:
    rewards = (torch.arange(len(weights)) % 3 == 0).float().view(-1, GROUP_SIZE)
    groups = Groups(rewards, weights.view(-1, GROUP_SIZE), torch.ones_like(rewards), rewards)
    return GradientWeightedBaseline()(groups).flatten() / GROUP_SIZE


def updates(vocabulary: int, length: int) -> dict[str, Update]:
    """Every kind of update on one batch, each on a model of its own; each leaves the gradient in ``.grad``."""
    batch = rollouts([length] * (SEQUENCES if length <= 1024 else GROUP_SIZE))
    packed, singles = pack(batch), [pack([rollout]) for rollout in batch]
    ids = torch.tensor([rollout.prompt_ids + rollout.completion.token_ids for rollout in batch])
    first, end = torch.full((len(batch),), PROMPT), torch.full((len(batch),), length)
    lm, peer = model(vocabulary), GhostClipping(model(vocabulary))
    policy_model = PolicyModel(lm, 1.0)

    def plain() -> None:
        lm.zero_grad()
        policy_model(packed).logprobs.sum().backward()

    def whole_logits() -> None:
        lm.zero_grad()
        logits = lm(input_ids=ids, use_cache=False).logits[:, PROMPT - 1 : -1]
        logits.log_softmax(-1).gather(2, ids[:, PROMPT:, None]).sum().backward()

    def loop() -> None:
        norms = []
        for single in singles:
            lm.zero_grad()
            policy_model(single).logprobs.sum().backward()
            norms.append(sum(p.grad.square().sum() for p in lm.parameters()))
        weights = coefficients(torch.stack(norms))
        lm.zero_grad()
        (policy_model(packed).logprobs * weights[packed.target_segments.ids]).sum().backward()

    def ghost_clipping() -> None:
        peer.lm.zero_grad()
        peer.update(lambda: peer.logprobs(ids, first, end), coefficients)

    return {
        "plain": plain,
        "plain, whole logits": whole_logits,
        "loop + update": loop,
        "Opacus, ghost clipping": ghost_clipping,
        **{kind: ours(policy_model, packed, kind) for kind in OURS},
    }


def ours(policy_model: PolicyModel, packed: PackedBatch, kind: str) -> Update:
    tier = GradNorms(**OURS[kind])

    def update() -> None:
        policy_model.zero_grad()
        with tier.measure(policy_model, policy_model.lm, [packed], GROUP_SIZE) as measured:
            measured.backward(coefficients(measured.square_norms))

    return update


ROUNDS, OF_SHORT = 9, 27
#: What is timed at T > 512.
LONG = ("plain", "one pass, exact", "one pass, sketch", "logit", "length")
#: time over plain; memory over plain
TARGETS = {
    "one pass, exact": (1.20, 1.6),
    "one pass, sketch": (1.10, 1.6),
    "two passes, exact": (2.1, 1.05),
    "two passes, sketch": (1.75, 1.05),
    "logit": (1.05, None),
    "length": (1.05, None),
}
#: how much faster one exact pass is to be, at T ≤ 512
PEERS = {"Opacus, ghost clipping": 1.4, "loop + update": 1.6}


def take_turns(kinds: dict[str, Update], rounds: int) -> Callable[[str, str], list[float]]:
    """Time all kinds in each round, after one that does not count; returns two kinds' ratios of times in a round.

    The first kind, which the others are compared with, is timed at both ends of a round: machines drift.
    """
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for counted in [False] + [True] * rounds:
        found = defaultdict[str, list[float]](list)
        for name in [*kinds, next(iter(kinds))]:
            start = time.perf_counter()
            kinds[name]()
            found[name].append(time.perf_counter() - start)
        for name in kinds if counted else ():
            seconds[name].append(mean(found[name]))
    return lambda name, other: [a / b for a, b in zip(seconds[name], seconds[other], strict=True)]


def over_plain(label: str, kinds: dict[str, Update], rounds: int) -> list[Figure]:
    """Each update's time over plain's in the same round, and its peers' over our exact pass."""
    ratios, figures = take_turns(kinds, rounds), []
    for kind in kinds:
        if kind != "plain":
            bound = TARGETS[kind][0] if kind in TARGETS else None
            figures.append(median_ratio(f"{label}: time, {kind}", ratios(kind, "plain"), "× plain", most=bound))
    for peer, bound in PEERS.items():
        if peer in kinds:
            name = f"{label}: {peer} over one pass, exact"
            figures.append(median_ratio(name, ratios(peer, "one pass, exact"), "×", least=bound))
    return figures


def ragged_times(rounds: int) -> list[Figure]:
    """The same where no two sequences are of one length, as responses are: 32 sequences of 24 to 120 tokens."""
    batch = rollouts(
        torch.linspace(24, 120, 32)[torch.randperm(32, generator=torch.Generator().manual_seed(2))].int().tolist()
    )
    policy_model, packed = PolicyModel(model(), 1.0), pack(batch)

    def plain() -> None:
        policy_model.zero_grad()
        policy_model(packed).logprobs.sum().backward()

    return over_plain(
        "T=24 to 120", {"plain": plain, **{kind: ours(policy_model, packed, kind) for kind in OURS}}, rounds
    )


def times(length: int, rounds: int) -> list[Figure]:
    kinds = updates(VOCAB, length)
    del kinds["plain, whole logits"]
    return over_plain(f"T={length}", {kind: kinds[kind] for kind in kinds if length <= 512 or kind in LONG}, rounds)


def errors(length: int, draws: int) -> list[Figure]:
    """Largest relative error of ``n_i`` (exact), and root mean square error (sketch), against one backward each."""
    lm = model()
    policy_model, batch = PolicyModel(lm, 1.0), rollouts([length] * SEQUENCES)
    oracle = []
    for rollout in batch:
        lm.zero_grad()
        policy_model(pack([rollout])).logprobs.sum().backward()
        oracle.append(sum(p.grad.double().square().sum() for p in lm.parameters()))

    def relative(step: int, **settings: object) -> Tensor:
        with GradNorms(**settings).measure(policy_model, lm, [pack(batch)], GROUP_SIZE, step) as measured:
            return measured.square_norms / torch.stack(oracle) - 1

    sketches = torch.stack([relative(step, tier="sketch", passes="one") for step in range(draws)])
    found = {
        "one pass, exact": (relative(0, tier="exact", passes="one").abs().max(), 1e-5),
        "two passes, exact": (relative(0, tier="exact", passes="two").abs().max(), 1e-5),
        "one pass, sketch": (sketches.square().mean().sqrt(), 0.05),
    }
    name = f"T={length}: relative error of n_i"
    return [at_most(f"{name}, {kind}", error.item(), "", bound) for kind, (error, bound) in found.items()]


def grown(kind: str, vocabulary: int, length: int) -> None:
    """Print by how many KiB two updates make this process grow."""
    update = updates(vocabulary, length)[kind]
    before = peak_memory()
    update()
    update()
    print(peak_memory() - before)


def peak_memory() -> int:
    """Largest resident size of this process so far, KiB; unlike getrusage's, not inherited from the parent."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def memory(kind: str, vocabulary: int, length: int) -> float:
    """KiB, measured in a process of its own."""
    command = [sys.executable, __file__, "--memory", kind, str(vocabulary), str(length)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memories(length: int) -> list[Figure]:
    plain, figures = memory("plain", VOCAB, length), []
    for kind, (_, bound) in TARGETS.items():
        if bound is not None:
            ratio = memory(kind, VOCAB, length) / plain
            figures.append(at_most(f"T={length}: peak memory, {kind}", ratio, "× plain", bound))
    return figures


def large_vocabulary(length: int) -> list[Figure]:
    """Peak memory where the logits of all tokens would take most of it."""
    whole = memory("plain, whole logits", LARGE_VOCAB, length)
    logits = SEQUENCES * (length - PROMPT) * LARGE_VOCAB * 4 / 1024
    figures = [Figure(f"V={LARGE_VOCAB}, T={length}: peak memory, plain, whole logits", whole / logits, "× logits")]
    for kind in ("plain", "one pass, exact", "two passes, exact"):
        ratio = memory(kind, LARGE_VOCAB, length) / whole
        figures.append(Figure(f"V={LARGE_VOCAB}, T={length}: peak memory, {kind}", ratio, "× plain, whole logits"))
    return figures


PARTS: dict[str, Callable[[], list[Figure]]] = {
    "128": lambda: times(128, OF_SHORT),
    **{str(length): partial(times, length, ROUNDS) for length in (512, 1024, 2048)},
    "ragged": lambda: ragged_times(OF_SHORT),
    "errors": lambda: errors(128, draws=16),
    "memory": lambda: [*memories(128), *memories(512), *large_vocabulary(128)],
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--memory", nargs=3)
    options.add_argument(
        "--parts", choices=PARTS, nargs="+", default=list(PARTS), help="measure again, keep the others"
    )
    args = options.parse_args()
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    if args.memory:
        kind, vocabulary, length = args.memory
        return grown(kind, int(vocabulary), int(length))
    if args.quick:
        return write("gradnorm-quick", [*times(64, rounds=2), *errors(64, draws=2)])
    figures = [figure for part in args.parts for figure in PARTS[part]()]
    write("gradnorm", figures, keep=args.parts != list(PARTS))


if __name__ == "__main__":
    main()
