"""One step of a tiny policy on given rollouts, on one process or two; the test of ranks compares the results."""

import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from collectives import Record
from conftest import drawn_by, make_rollouts, tiny_model
from poisons import POISONS, spoilt
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from callbacks.grad_stats import GradStats
from callbacks.monitors import BaselineBlowUp, EntropyCollapse, Monitors, OwnSampleDependence
from callbacks.second_moments import SecondMoments
from callbacks.snr import SNRMonitor
from oblr.baselines.base import Baseline
from oblr.baselines.batch_mean import BatchMeanBaseline
from oblr.baselines.gradient_weighted import PRIORS, GradientWeightedBaseline
from oblr.baselines.rloo import RLOOBaseline
from oblr.baselines.value import ValueBaseline
from oblr.batch.types import RolloutBatch, StepStatistics
from oblr.gradnorm import head
from oblr.gradnorm.measure import GradNorms
from oblr.losses.kl import KLPenalty
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.losses.ppo_clip import PPOClipLoss
from oblr.policy.adapter import LoRA
from oblr.policy.step import PolicyModule
from oblr.run.strategies import DDP, FSDP, SingleDevice
from oblr.schedules.snr import SNRSchedule

LENGTHS = [3, 9, 1, 4, 12, 2, 5, 5, 6, 6, 6, 6, 1, 30, 2, 8, 7, 3, 11, 2, 9, 9, 1, 1, 4, 5, 6, 7, 20, 3, 3, 2]
#: all groups live; or all live groups on the first rank; or none; or a mixture
REWARDS = {
    "all": [1, 0, 0, 1] * 8,
    "first": [1, 0, 0, 1] * 4 + [0, 0, 0, 0] * 4,
    "none": [1] * 32,
    "mixed": [1, 0, 0, 1, 1, 1, 1, 1, 0, 0.5, 0, 1, 0, 0, 0, 0] + [0, 1, 0, 0] * 3 + [1, 1, 1, 1],
}
WATCHED = {
    "rloo": RLOOBaseline,
    "batch_mean": BatchMeanBaseline,
    **{prior: partial(GradientWeightedBaseline, prior=prior) for prior in PRIORS},
}
#: processes, where they are not two
RANKS = {"single": 1, "four": 4, "hybrid": 4, "hybrid-offloaded": 4}
#: what happens to a response of the second rank, in one step after the other
POISONED = ("reward is nan", "log π − log μ is inf", "gradient overflows")
#: what the policy is told, and for how many steps it is trained
SETTINGS: dict[str, tuple[Callable[[], dict[str, Any]], int]] = {
    "plain": (
        lambda: {
            "baseline": GradientWeightedBaseline(),
            "loss": PolicyGradientLoss("none"),
            "schedule": SNRSchedule(0.1, "plug_in"),
        },
        1,
    ),
    "tokens": (
        lambda: {
            "baseline": ValueBaseline(),
            "loss": PPOClipLoss(),
            "schedule": SNRSchedule(0.1, "plug_in"),
            "kl": KLPenalty("k2", 0.2),
        },
        2,
    ),
    "shaped": (
        lambda: {
            "baseline": GradientWeightedBaseline(prior="history"),
            "loss": PolicyGradientLoss(),
            "schedule": SNRSchedule(1e-3, "plug_in"),
            "kl": KLPenalty("k1", 0.2),
            "updates_per_batch": 2,
        },
        1,
    ),
    "step": (
        lambda: {
            "baseline": GradientWeightedBaseline(prior="step"),
            "loss": PolicyGradientLoss(),
            "schedule": SNRSchedule(1e-3, "plug_in"),
        },
        2,
    ),
    "past": (
        lambda: {
            "baseline": GradientWeightedBaseline(prior="past"),
            "loss": PolicyGradientLoss(),
            "schedule": SNRSchedule(1e-3, "plug_in"),
        },
        2,
    ),
    "kept": (
        lambda: {
            "baseline": GradientWeightedBaseline(),
            "loss": PolicyGradientLoss("none"),
            "schedule": SNRSchedule(0.1, "plug_in"),
        },
        2,
    ),
    "lora": (
        lambda: {
            "baseline": GradientWeightedBaseline(),
            "loss": PolicyGradientLoss("none"),
            "schedule": SNRSchedule(0.1, "plug_in"),
            "adapter": "lora",
            "lora": LoRA(3, 6.0, "all-linear", seed=1),  # B is zero in the first step, and with it the gradient of A
        },
        2,
    ),
    "poisoned": (  # one healthy step, after others
        lambda: {
            "baseline": ValueBaseline(),
            "loss": PolicyGradientLoss("token"),
            "schedule": SNRSchedule(0.1, "plug_in"),
        },
        1 + len(POISONED),
    ),
}


SETTINGS["resumed"] = SETTINGS["kept"]


def observers() -> list[L.Callback]:
    """What shows figures of the whole step, whatever the number of ranks."""
    return [
        GradStats(every=1),
        SecondMoments({name: made() for name, made in WATCHED.items()}),
        SNRMonitor(),
        Monitors(
            baseline=BaselineBlowUp(1.1, 3), entropy=EntropyCollapse(0.1, 3), own_sample=OwnSampleDependence(every=1)
        ),
    ]


class Share:
    """This rank's groups, of which the second rank's have one poison after the other, if they are to be."""

    def __init__(self, rollouts: list, trainer: L.Trainer, poisoned: bool):
        self.rollouts, self.trainer, self.poisoned = rollouts, trainer, poisoned

    def __len__(self) -> int:
        return 1

    def __iter__(self):
        share = len(self.rollouts) // self.trainer.world_size
        batch, step = RolloutBatch(self.rollouts, 4, 1), self.trainer.current_epoch
        if self.poisoned and step < len(POISONED):
            batch = spoilt(batch, 25, POISONS[POISONED[step]])
        yield RolloutBatch(batch.rollouts[self.trainer.global_rank * share :][:share], 4, 1)


class Keep(L.Callback):
    def __init__(self):
        self.gradient: dict[str, torch.Tensor] = {}

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        trained = ((name, p) for name, p in pl_module.scorer.lm.named_parameters() if p.requires_grad)
        self.gradient = {name: whole(p.grad).clone() for name, p in trained}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.stats: StepStatistics = outputs["statistics"]


def whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def flattened(baseline: Baseline) -> torch.Tensor:
    """What the baseline remembers."""
    values = tree_leaves(baseline.state_dict())
    return torch.cat([torch.as_tensor(value, dtype=torch.float64).flatten() for value in values] or [torch.zeros(0)])


def is_tied(folder: Path) -> bool:
    return folder.name.startswith("tied")


class Save(L.Callback):
    """Writes a checkpoint of this kind of run after its first step."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(self.path)


def main(
    settings: str,
    kind: str,
    passes: str,
    token_budget: int,
    rewards: str,
    precision: str,
    folder: Path,
    resumed: str | None,
) -> None:
    sharded = {"fsdp": FSDP, "offloaded": FSDP, "four": FSDP}
    sharded |= dict.fromkeys(("hybrid", "hybrid-offloaded"), partial(FSDP, replicas=2))
    strategy = ({"single": SingleDevice, "ddp": DDP} | sharded)[kind]()
    make, steps = SETTINGS[settings]
    policy = PolicyModule(
        path=str(folder / "model"),
        dtype="float32",
        gradnorm=GradNorms("exact", passes),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=0.9),
        temperature=1.0,
        token_budget=token_budget,
        logprob_gap_mean=100.0,
        logprob_gap_p99=100.0,
        activation_checkpointing="offloaded" in kind,
        cpu_offload="offloaded" in kind,
        **make(),
    )
    keep = Keep()
    trainer = L.Trainer(
        max_epochs=steps,
        accelerator="cpu",
        devices=RANKS.get(kind, 2),
        strategy=strategy,
        precision=precision,
        callbacks=[
            *(keep, *observers(), Record(str(folder / f"{settings}-{passes}"))),
            *[Save(folder / f"checkpoint-{kind}")] * (settings == "kept"),
        ],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rollouts = drawn_by(tiny_model(is_tied(folder)), make_rollouts(LENGTHS, REWARDS[rewards]), 1.0, drift=0.3)
    share = Share(rollouts, trainer, settings == "poisoned")
    trainer.fit(policy, share, ckpt_path=resumed and folder / f"checkpoint-{resumed}", weights_only=True)
    stats = keep.stats
    for p in policy.parameters():  # the optimizer's own, which a checkpoint is made of
        assert isinstance(p, DTensor) == (kind in sharded)
        assert p.dtype == torch.float32
    result = {
        "baseline": flattened(policy.baseline),
        "square_norms": stats.square_norms.flatten(),
        "moments": torch.tensor([stats.moments.mean_square, stats.moments.square_mean, stats.lr]),
        **{name: weight.clone() for name, weight in policy.weights()},
        "gradient": keep.gradient,
        "logged": dict(trainer.callback_metrics),
        "refused": torch.tensor(policy.refusals.count),
    }
    if trainer.is_global_zero:
        torch.save(result, folder / f"{settings}-{passes}.pt")


def fork(ranks: int) -> list[int]:
    """Makes this process the first of so many, which have imported all that it has; returns the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "LOCAL_RANK": "0"}
    others = []
    for rank in range(1, ranks):
        others.append(os.fork())
        if not others[-1]:
            os.environ["LOCAL_RANK"] = str(rank)
            return []
    return others


if __name__ == "__main__":
    kind, rewards, precision, logits, path, *runs = sys.argv[1:]
    others = fork(RANKS[kind]) if RANKS.get(kind, 2) > 2 else []
    head.SLICE = int(logits)
    folder = Path(path)
    if not (folder / "model").exists():
        tiny_model(is_tied(folder)).save_pretrained(folder / "model")
    for one in runs:
        settings, passes, token_budget, own, resumed = [*one.split(":"), *[""] * 2][:5]
        main(settings, own or kind, passes, int(token_budget), rewards, precision, folder, resumed or None)
    assert all(os.waitpid(other, 0)[1] == 0 for other in others)
