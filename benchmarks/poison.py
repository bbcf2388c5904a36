"""Steps that meet what is no number: 10,000 steps of a small policy, about a third of which are poisoned.

    python benchmarks/poison.py [--quick]

A Qwen3 of random weights takes real steps (exact norms, a baseline with a prior, the SNR schedule, AdamW) on batches of
random rollouts whose behaviour policy is itself. Which steps are poisoned, how (``tests/poisons.py``: rewards, an
engine's log-probabilities, and ratios up to e^400) and in which response is drawn at random; at most nine in a row, as
ten end a run. The same is done again without the poisoned steps. Both must end with the same bits: parameters,
the optimizer's state, and the averages of schedule, baseline and the callbacks that show curves.
"""

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from report import ROOT, Figure, at_least, at_most, write
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from callbacks.observer import Observer
from callbacks.second_moments import SecondMoments
from callbacks.snr import SNRMonitor
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.gradnorm.measure import GradNorms
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.packing import pack
from oblr.policy.judgement import PATIENCE
from oblr.policy.step import PolicyModule
from oblr.problem import Completion, Problem
from oblr.schedules.snr import SNRSchedule
from oblr.types import Rollout, RolloutBatch, StepReport

sys.path.insert(0, str(ROOT / "tests"))
from poisons import POISONS, spoilt

GROUPS, GROUP_SIZE, VOCAB = 2, 4, 17
#: Share of the steps that are poisoned.
SHARE = 1 / 3


def drawn_steps(steps: int) -> list[tuple[int, str | None, int]]:
    """Of each step its seed, its poison, if any, and the poisoned response."""
    rng, drawn, streak = random.Random(0), [], 0
    for seed in range(steps):
        poisoned = rng.random() < SHARE and streak < PATIENCE - 1
        streak = streak + 1 if poisoned else 0
        drawn.append((seed, rng.choice(list(POISONS)) if poisoned else None, rng.randrange(GROUPS * GROUP_SIZE)))
    return drawn


class Batches:
    """One batch an epoch, drawn when the policy has got there; the rewards of no group are all equal."""

    def __init__(self, drawn: Sequence[tuple[int, str | None, int]]):
        self.left, self.policy = iter(drawn), None

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[RolloutBatch]:
        seed, poison, response = next(self.left)
        rng = random.Random(seed)
        batch = RolloutBatch([self.rollout(rng, i) for i in range(GROUPS * GROUP_SIZE)], GROUP_SIZE, 1)
        yield batch if poison is None else spoilt(batch, response, POISONS[poison])

    def rollout(self, rng: random.Random, i: int) -> Rollout:
        tokens = [rng.randrange(VOCAB) for _ in range(rng.randint(3, 6))]
        reward = float(i % GROUP_SIZE == 0) + rng.random() / 2
        completion = Completion(tokens[2:], [0.0] * len(tokens[2:]), True)
        bare = Rollout(Problem(str(i), "?", "!"), tokens[:2], completion, "", reward)
        with torch.no_grad():
            logs = self.policy.scorer(pack([bare])).logprobs.tolist()  # type: ignore[attr-defined]
        return replace(bare, completion=replace(completion, logprobs=logs))


class Watch(Observer):
    """Counts steps of both kinds, and parameters that are not finite after any of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def on_step(self, trainer: L.Trainer, policy: PolicyModule, report: StepReport) -> None:
        self.count("refused" if report.refused else "taken", policy)

    on_refused = on_step

    def count(self, kind: str, policy: PolicyModule) -> None:
        self.counts[kind] += 1
        self.counts["no numbers"] += not all(p.isfinite().all() for p in policy.parameters())


def run(folder: str, drawn: Sequence[tuple[int, str | None, int]]) -> tuple[dict[str, Any], Counter[str]]:
    """All that a run ends with, and what was counted."""
    policy = PolicyModule(
        path=folder,
        dtype="float32",
        gradnorm=GradNorms("exact"),
        baseline=GradientWeightedBaseline(prior="past"),
        loss=PolicyGradientLoss(),
        schedule=SNRSchedule(1e-4),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.0),
        temperature=1.0,
        token_budget=200,
        logprob_gap_mean=1e3,
        logprob_gap_p99=1e3,
    )
    averages = SNRMonitor(), SecondMoments({"past": GradientWeightedBaseline(prior="past")})
    watch, batches = Watch(), Batches(drawn)
    batches.policy = policy  # type: ignore[assignment]
    trainer = L.Trainer(
        max_epochs=len(drawn),
        accelerator="cpu",
        callbacks=[*averages, watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(policy, batches)
    (optimizer,) = trainer.optimizers
    states = [policy.schedule, policy.baseline, *averages]
    end = {"parameters": dict(policy.named_parameters()), "optimizer": list(optimizer.state.values())}
    return end | {"averages": [state.state_dict() for state in states]}, watch.counts


def flat(state: Any) -> Iterator[Tensor]:
    """The numbers in nested dictionaries and lists."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list):
        for part in state:
            yield from flat(part)
    else:
        yield torch.as_tensor(state).detach().double().flatten()


def model(folder: str) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": VOCAB}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    Qwen3ForCausalLM(Qwen3Config(**shape, **heads)).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    for name in ("lightning.pytorch", "oblr"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)  # more would wait for each other
    drawn = drawn_steps(200 if quick else 10_000)
    healthy = [step for step in drawn if step[1] is None]
    with tempfile.TemporaryDirectory() as folder:
        model(folder)
        poisoned, counts = run(folder, drawn)
        alone, _ = run(folder, healthy)
    figures = [
        Figure("steps", len(drawn), ""),
        at_least("kinds of poison", len({poison for _, poison, _ in drawn} - {None}), "", len(POISONS)),
        at_most("poisoned steps that were taken", len(drawn) - len(healthy) - counts["refused"], "", 0),
        at_most("healthy steps that were refused", len(healthy) - counts["taken"], "", 0),
        Figure("refused steps", counts["refused"], ""),
        at_most("steps that left a parameter which is no number", counts["no numbers"], "", 0),
    ]
    for kind, state in poisoned.items():
        found, expected = (torch.cat(list(flat(part))) for part in (state, alone[kind]))
        assert found.isfinite().all()
        figures.append(at_most(f"{kind}: numbers that differ", int((found != expected).sum()), "", 0))
        figures.append(Figure(f"{kind}: numbers", len(found), ""))
    write("poison-quick" if quick else "poison", figures)


if __name__ == "__main__":
    main()
