"""Is a plan right? Planned against measured peak memory of training steps.

    python benchmarks/plan.py [--quick]

Measured is the growth of the peak of a fresh process that trains a small policy with Qwen3's vocabulary, in float32 on
the CPU, through the real trainer. Planned for it is what ``plan=true`` says of weights, gradients, optimizer state and
what comes and goes.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from typing import Any

import lightning as L
import torch
from figures import Figure, at_most, parser, write
from gradnorm import peak_memory
from transformers import Qwen3Config, Qwen3ForCausalLM

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.batch.types import RolloutBatch
from oblr.gradnorm.measure import GradNorms
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.plan.memory import GIB
from oblr.plan.update import Batch, World, plan_update
from oblr.policy.step import PolicyModule
from oblr.run.strategies import FSDP
from oblr.schedules.constant import ConstantSchedule

CONFIG = Qwen3Config(
    vocab_size=151_936,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    tie_word_embeddings=True,
)
BATCH = Batch(groups=4, group_size=4, longest=64, response=56)
TOKEN_BUDGET = 512
OPTIMIZERS = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}
#: optimizer, passes, activation checkpointing, ranks
CASES: dict[str, tuple[str, str, bool, int]] = {
    "SGD, one pass": ("SGD", "one", False, 1),
    "SGD, two passes": ("SGD", "two", False, 1),
    "SGD, two passes, checkpointing": ("SGD", "two", True, 1),
    "AdamW, one pass": ("AdamW", "one", False, 1),
    "AdamW, two passes": ("AdamW", "two", False, 1),
    "AdamW, two passes, checkpointing": ("AdamW", "two", True, 1),
    "AdamW, one pass, two ranks": ("AdamW", "one", False, 2),
    "AdamW, two passes, two ranks": ("AdamW", "two", False, 2),
}
#: Memory that is freed is given back to the system at once, so that the process is as large as what it holds.
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def policy(case: str, path: str) -> PolicyModule:
    optimizer, passes, _, _ = CASES[case]
    return PolicyModule(
        path=path,
        dtype="float32",
        gradnorm=GradNorms("exact", passes),
        baseline=GradientWeightedBaseline(),
        loss=PolicyGradientLoss("none"),
        schedule=ConstantSchedule(1e-4),
        optimizer=partial(OPTIMIZERS[optimizer], lr=0.0),
        temperature=1.0,
        token_budget=TOKEN_BUDGET,
        logprob_gap_mean=1e3,
        logprob_gap_p99=1e3,
    )


def planned(case: str) -> float:
    """Bytes."""
    _, _, checkpointing, ranks = CASES[case]
    world = World(ranks, sharded=ranks > 1, checkpointing=checkpointing, gpu=False)
    return plan_update(policy(case, ""), CONFIG, world, BATCH).peak.total()


class Rollouts:
    """Two steps on this rank's groups."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        rollouts = BATCH.rollouts([BATCH.longest] * BATCH.groups * BATCH.group_size)
        rollouts = [replace(rollout, reward=float(i % 3 == 0)) for i, rollout in enumerate(rollouts)]
        yield RolloutBatch(rollouts, BATCH.group_size, 1)


class Checkpointing(L.Callback):
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        pl_module.scorer.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def train(case: str, path: str) -> None:
    """Print by how many KiB two steps make this process grow, loading included."""
    _, _, checkpointing, ranks = CASES[case]
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=ranks,
        strategy=FSDP() if ranks > 1 else "auto",
        callbacks=[Checkpointing()] if checkpointing else [],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    before = peak_memory()
    trainer.fit(policy(case, path), Rollouts())
    if trainer.is_global_zero:
        print(f"grown {peak_memory() - before}")


def measured(case: str, path: str) -> float:
    """Bytes, in a process of its own; the first rank's."""
    command = [sys.executable, __file__, "--train", case, path]
    result = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | MALLOC | {"OMP_NUM_THREADS": "1"}, check=True
    )
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("grown"))
    return float(line.split()[1]) * 1024


def accuracy(cases: list[str]) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        Qwen3ForCausalLM(CONFIG).save_pretrained(folder)
        for case in cases:
            plan, truth = planned(case), measured(case, folder)
            figures.append(Figure(f"{case}: measured", truth / GIB, "GiB"))
            figures.append(at_most(f"{case}: |planned / measured − 1|", abs(plan / truth - 1), "", 0.1))
            figures.append(Figure(f"{case}: planned / measured", plan / truth, ""))
    return figures


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--train", nargs=2)
    args = options.parse_args()
    if args.train:
        return train(*args.train)
    figures = accuracy(list(CASES)[:1] if args.quick else list(CASES))
    write("plan-quick" if args.quick else "plan", figures)


if __name__ == "__main__":
    main()
