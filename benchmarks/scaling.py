"""How does the cost of an update grow? With the share of live groups, the length of sequences, the size of the model.

    python benchmarks/scaling.py [--quick]

Live groups: `PolicyModule.update` as a run calls it, optimizer included, timed at three shares of groups whose rewards
differ. Growth: time a token of each kind of update against tokens a sequence (a 3 M-parameter Qwen3; 8,192 tokens each
time) and against parameters (1,024 tokens in sequences of 128), with the exponent of the best-fitting power.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import lightning as L
import torch
from figures import Figure, at_most, write
from gradnorm import OURS
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.packing import pack
from oblr.batch.types import Rollout, RolloutBatch
from oblr.gradnorm.measure import GradNorms
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.policy.model import PolicyModel
from oblr.policy.step import PolicyModule
from oblr.problem import Completion, Problem
from oblr.schedules.constant import ConstantSchedule

VOCAB, PROMPT, GROUP_SIZE = 1024, 16, 4
#: hidden size → layers; about 1, 3, 10, 30 and 100 million parameters
SHAPES = {128: 4, 192: 6, 320: 7, 512: 9, 768: 13}
MODES = {kind: settings for kind, settings in OURS.items() if kind != "length"}


def model(hidden: int) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=SHAPES[hidden],
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        head_dim=64,
        tie_word_embeddings=False,
        max_position_embeddings=8192,
    )
    return Qwen3ForCausalLM(config).train()


def rollouts(count: int, length: int, live: float = 1.0) -> list[Rollout]:
    """Random tokens; the first ``live`` of the groups have rewards that differ."""
    tokens = torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(1)).tolist()
    completions = [Completion(row[PROMPT:], [0.0] * (length - PROMPT), True) for row in tokens]
    rewards = [float(i % GROUP_SIZE == 0 and i < live * count) for i in range(count)]
    return [
        Rollout(Problem("", "", ""), row[:PROMPT], completion, "", reward)
        for row, completion, reward in zip(tokens, completions, rewards, strict=True)
    ]


class Updates(L.Callback):
    """Seconds of each update."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: PolicyModule, *_: object) -> None:
        self.seconds.append(pl_module.clock.reset()["update"])


def live_seconds(folder: str, batches: list[RolloutBatch]) -> list[float]:
    """Seconds of one update on each batch, by one policy."""
    policy = PolicyModule(
        path=folder,
        dtype="float32",
        gradnorm=GradNorms("exact", "one"),
        baseline=GradientWeightedBaseline(),
        loss=PolicyGradientLoss("none"),
        schedule=ConstantSchedule(1e-6),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        temperature=1.0,
        token_budget=1024,
        logprob_gap_mean=1e3,
        logprob_gap_p99=1e3,
    )
    updates = Updates()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[updates],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(policy, DataLoader(batches, batch_size=None))
    return updates.seconds


def live_figures(quick: bool) -> list[Figure]:
    shares, n_groups, rounds = (1.0, 0.5, 0.2), 10, 1 if quick else 5
    with tempfile.TemporaryDirectory() as folder:
        model(128 if quick else 512).save_pretrained(folder)
        batches = [RolloutBatch(rollouts(n_groups * GROUP_SIZE, 128, share), GROUP_SIZE, 1) for share in shares]
        seconds = live_seconds(folder, batches * (rounds + 1))[len(shares) :]  # the first round warms up
    figures = []
    for k, share in enumerate(shares[1:], 1):
        ratio = statistics.median(a / b for a, b in zip(seconds[k::3], seconds[::3], strict=True))
        figures.append(at_most(f"update with {share:.0%} of the groups live", ratio, "× all live", share + 0.05))
    return figures


def per_token(hidden: int, count: int, length: int, rounds: int) -> dict[str, float]:
    """Seconds a token of each kind of update, the fastest of some rounds."""
    lm, packed = model(hidden), pack(rollouts(count, length))
    policy_model, coefficients = PolicyModel(lm, 1.0), torch.linspace(-1, 1.3, count)

    def plain() -> None:
        policy_model(packed).logprobs.sum().backward()

    def ours(tier: GradNorms) -> Callable[[], None]:
        def update() -> None:
            with tier.measure(policy_model, lm, [packed], min(count, GROUP_SIZE)) as measured:
                measured.backward(coefficients)

        return update

    kinds = {"plain": plain, **{name: ours(GradNorms(**settings)) for name, settings in MODES.items()}}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for name, update in rounds * list(kinds.items()):
        lm.zero_grad()
        start = time.perf_counter()
        update()
        seconds[name].append(time.perf_counter() - start)
    return {name: min(spent) / (count * length) for name, spent in seconds.items()}


def exponent(sizes: list[float], costs: list[float]) -> float:
    """Slope of log cost against log size by least squares."""
    x, y = torch.tensor(sizes).log(), torch.tensor(costs).log()
    return (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()


def growth_figures(axis: str, sizes: list[float], costs: list[dict[str, float]]) -> list[Figure]:
    figures = []
    for kind in costs[0]:
        slope = exponent(sizes, [cost[kind] for cost in costs])
        figures.append(Figure(f"exponent of time a token in {axis}, {kind}", slope, ""))
        for size, cost in zip(sizes, costs, strict=True):
            if kind != "plain":
                figures.append(Figure(f"{axis} = {size:g}: {kind}", cost[kind] / cost["plain"], "× plain"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    figures = live_figures(quick)

    tokens, lengths = (1024, [128, 256, 512]) if quick else (8192, [128, 256, 512, 1024, 2048, 4096])
    costs = [per_token(192, tokens // length, length, 2) for length in lengths]
    figures += growth_figures("tokens a sequence", lengths, costs)

    hidden = [128, 192, 320] if quick else list(SHAPES)
    costs = [per_token(size, 8, 128, 1 if quick else 4) for size in hidden]
    millions = [sum(p.numel() for p in model(size).parameters()) / 1e6 for size in hidden]
    figures += growth_figures("million parameters", [round(m, 1) for m in millions], costs)
    write("scaling-quick" if quick else "scaling", figures)


if __name__ == "__main__":
    main()
