"""Whether the doctor finds what ails a run of TRL's: faults planted in runs of its GRPOTrainer, beside healthy ones.

    python benchmarks/doctor_trl.py [--quick] [--seeds 10] [--healthy 20] [--jobs 1] [--kept] [--only FAULT ...]

The pocket policy learns sums under AdamW, N = 16, G = 8, 32 steps, and ``watch`` writes the statistics. Three faults of
``doctor.py`` cannot be here: TRL has no pooled baseline, and without vLLM neither a stale engine nor ratios but 1. A
layer's gradient that is scaled by a hook is none that a doctor needs to find: ``watch`` refuses the first
step, which is a figure of its own. Runs keep their statistics in .cache/doctor_trl and are not repeated.
"""

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from figures import Figure, at_least
from grown import POCKET
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from doctor import FRESH, STEPS, command, kept, path_of
from oblr.doctor.findings import Finding
from oblr.errors import UnmeasuredError
from oblr.statistics.log import StepRecord
from oblr.statistics.trl import watch

RATE = 1e-4


def right(completions: Sequence[str], answers: Sequence[str]) -> list[float]:
    pairs = zip(completions, answers, strict=True)
    return [float(text.rpartition("Answer:")[2].strip() == answer) for text, answer in pairs]


def at(seed: int) -> tuple[int, int]:
    """Step, from 1, and place of what happens once."""
    draw = random.Random(seed)
    return draw.randrange(STEPS // 2, STEPS - 2), draw.randrange(128)


# --- what is planted ------------------------------------------------------------------------------------------------


def hundred(step: int, seed: int, completions: Sequence[str], given: list[float]) -> list[float]:
    when, place = at(seed)
    return [100.0 if (step, i) == (when, place) else reward for i, reward in enumerate(given)]


def for_nothing(step: int, seed: int, completions: Sequence[str], given: list[float]) -> list[float]:
    return [1.0 if text.lstrip().startswith("Answer:") else one for text, one in zip(completions, given, strict=True)]


def hopeless(step: int, seed: int, completions: Sequence[str], given: list[float]) -> list[float]:
    """Three in four prompts pay nothing."""
    return [reward if i // 8 % 4 == 0 else 0.0 for i, reward in enumerate(given)]


def repeated(trainer: Any, seed: int) -> None:
    """At one step all responses to a prompt but one are the longest of the step, which is none of the likely ones."""
    sample, calls = trainer._generate_single_turn, [0]

    def altered(*given: Any, **named: Any) -> tuple[Any, Any]:
        completions, logprobs = sample(*given, **named)
        calls[0] += 1
        if calls[0] == at(seed)[0]:
            longest = max(range(len(completions)), key=lambda i: len(completions[i]))
            first = longest // 8 * 8
            others = [i for i in range(first, first + 8) if i != longest][:6]
            for i in others:
                completions[i] = list(completions[longest])
        return completions, logprobs

    trainer._generate_single_turn = altered


def scaled(trainer: Any, seed: int) -> None:
    for p in trainer.model.model.layers[1].mlp.parameters():
        p.register_hook(lambda gradient: 30 * gradient)


def is_hundred(finding: Finding, seed: int, steps: Sequence[StepRecord]) -> bool:
    found = [step for step in steps if step.step == finding.step]
    return bool(found) and finding.response is not None and found[0].responses[finding.response].reward == 100


@dataclass(frozen=True)
class Fault:
    """What is wrong with a run, and the finding that should come first; see ``doctor.py``.

    Attributes:
        reward: what becomes of a step's rewards, given the step, the seed and the completions.
    """

    finding: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    reward: Callable[[int, int, Sequence[str], list[float]], list[float]] = lambda step, seed, completions, given: given
    change: Callable[[Any, int], None] = lambda trainer, seed: None
    culprit: Callable[[Finding, int, Sequence[StepRecord]], bool] | None = None
    fresh: int = FRESH


FAULTS = {
    "a duplicated response": Fault("duplicates", change=repeated),
    "one reward of 100": Fault("odd_reward", reward=hundred, culprit=is_hundred),
    "a reward for the empty answer": Fault("paid_for_nothing", reward=for_nothing),
    "η × 8": Fault("rate_large", {"learning_rate": 8 * RATE}),
    "η ÷ 30": Fault("rate_small", {"learning_rate": RATE / 30}),
    "N = 2": Fault("few_prompts", {"per_device_train_batch_size": 16, "max_steps": 8 * STEPS}),  # as many responses
    "G = 64 with N = 2": Fault("large_groups", {"num_generations": 64}),
    "dead groups": Fault("dead_groups", reward=hopeless),
}
REFUSED = Fault("", change=scaled)


def sums(count: int, seed: int) -> Dataset:
    rng, rows = random.Random(seed), []
    for _ in range(count):
        terms = [rng.randint(0, 9), *(rng.choice((1, -1)) * rng.randint(0, 9) for _ in range(rng.randint(2, 4)))]
        rest = "".join(f" {'-' if term < 0 else '+'} {abs(term)}" for term in terms[1:])
        rows.append({"prompt": f"{terms[0]}{rest} =\n", "answer": str(sum(terms))})
    return Dataset.from_list(rows)


def train(fault: Fault, seed: int, path: Path, count: int) -> None:
    """One run, whose statistics are added to ``path``."""
    torch.set_num_threads(1)
    calls = [0]

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        calls[0] += 1
        return fault.reward(calls[0], seed, completions, right(completions, answer))

    settings: dict[str, Any] = {
        **{"per_device_train_batch_size": 128, "num_generations": 8, "max_completion_length": 64, "max_steps": count},
        **{"learning_rate": RATE, "lr_scheduler_type": "constant", "scale_rewards": "none", "seed": seed},
        **{"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True},
        **{"use_cpu": True, "bf16": False},
    }
    tokenizer = AutoTokenizer.from_pretrained(POCKET, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.float32),
            [reward],
            GRPOConfig(folder, **settings | fault.settings),
            sums(128 * count, seed),
            processing_class=tokenizer,
        )
        fault.change(trainer, seed)
        watch(trainer, path)
        trainer.train()


def steps_of(name: str, seed: int, folder: Path, count: int) -> list[StepRecord]:
    """Of the run with this fault, which is trained if it has not been."""
    fault = FAULTS.get(name, Fault(""))
    return kept(path_of(name, seed, folder), lambda part: train(fault, seed, part, count))


def refused() -> list[Figure]:
    """Whether a layer's gradient that is scaled ends the run."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(REFUSED, 1, Path(folder, "statistics.jsonl"), 2)
            found = 0
        except UnmeasuredError:
            found = 1
    return [at_least("a layer's gradient scaled: refused", found, "of 1 run", 1)]


if __name__ == "__main__":
    command(__doc__, "doctor_trl", FAULTS, steps_of, {"η ÷ 30": [1]}, refused, lambda finding: bool(finding.trl))
