"""Which passes and token budget a run on this device comes to by itself, beside what ``plan=true`` says of it.

Settings are those of ``experiment=oblr_qwen3_4b`` with random weights; no engine lies beside the policy.
"""

from collections.abc import Iterator
from typing import Any, cast

import hydra
import torch
from figures import Figure, at_most
from gpu_device import DEVICE, GIB, GPU, autocast, random_model, seconds
from hydra.types import RunMode

from oblr.batch.types import LogprobGap, RolloutBatch
from oblr.commands.compose import composer
from oblr.commands.plan import draft, planned_config
from oblr.plan.phases import Alone
from oblr.plan.roofline import GPUS
from oblr.policy.attention import choose_attention
from oblr.policy.loading import checkpoint_blocks
from oblr.policy.model import PolicyModel


class OneDevice(Alone):
    """What settling asks besides."""

    num_devices = 1


def measure(quick: bool) -> Iterator[Figure | str]:
    overrides = [f"experiment={'oblr_pocket' if quick else 'oblr_qwen3_4b'}", "gradnorm.passes=auto"]
    with composer() as composed:
        cfg = composed("train", overrides, RunMode.RUN)
        config = planned_config(cfg)
        drafted = draft(cfg, GPUS["h100"])
    planned, batch, mixed = drafted.policy, drafted.batch, drafted.world.mixed
    attention = choose_attention(config, GPU, torch.bfloat16 if mixed else torch.float32)
    policy = hydra.utils.instantiate(cfg.policy, _convert_="all")
    policy.to(DEVICE)
    policy.scorer = PolicyModel(random_model(config, attention, fused=GPU), 1.0)
    checkpoint_blocks(policy.scorer.lm, drafted.world.checkpointing)
    policy.trainer = cast(Any, OneDevice(1, cfg.trainer.precision))
    optimizer = policy.make_optimizer(policy.parameters())
    policy.__dict__["optimizers"] = lambda: optimizer

    groups = 2
    lengths = [batch.longest] * groups * batch.group_size
    rollouts = RolloutBatch(batch.rollouts(lengths), batch.group_size, 0)

    def step() -> None:
        with autocast(mixed):
            policy.update(rollouts, rollouts.rewards, LogprobGap(0.0, 0.0, 0.0), fresh=True)

    first, taken = seconds(step), seconds(step)
    for name, ours, theirs in (
        ("passes", policy.gradnorm.passes, planned.gradnorm.passes),
        ("tokens of a micro-batch", policy.token_budget, planned.token_budget),
    ):
        yield f"{name}: {ours}; planned: {theirs}"
        yield at_most(f"{cfg.name}: {name}, other than planned", float(ours != theirs), "", 0)
    yield Figure(f"{cfg.name}: first update of {groups} groups", 1e3 * first, "ms")
    yield Figure(f"{cfg.name}: update of {groups} groups", 1e3 * taken, "ms")
    if GPU:
        peak = torch.cuda.max_memory_allocated() / GIB
        yield Figure(f"{cfg.name}: peak memory", peak, "GiB")
        predicted = drafted.update(batch).peak.total() / GIB
        yield Figure(f"{cfg.name}: peak memory, predicted / measured", predicted / peak, "")
