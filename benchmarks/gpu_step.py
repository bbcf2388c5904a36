"""A whole step by phase, engine and policy on one device: N = 16, G = 8, 512 tokens a sequence."""

from collections.abc import Iterator
from statistics import median
from typing import Any, cast

import torch
from figures import Figure
from gpu_device import DEVICE, GIB, GPU, autocast, seconds
from gpu_engine import GROUP_SIZE, Pair
from roofline import policy as policy_of

from oblr.batch.types import RolloutBatch
from oblr.plan.phases import Alone

STEPS = 2


def measure(quick: bool) -> Iterator[Figure | str]:
    model = "pocket" if quick else "4B"
    prompts, prompt, response = (2, 8, 16) if quick else (16, 64, 448)
    pair = Pair(model, prompt + response)
    policy = policy_of("exact, one pass")
    policy.to(DEVICE)
    policy.scorer = pair.scorer
    policy.trainer = cast(Any, Alone(1, "bf16-mixed" if pair.mixed else "32-true"))
    optimizer = policy.make_optimizer(policy.parameters())
    policy.__dict__["optimizers"] = lambda: optimizer
    pair.engine.start()
    found: dict[str, Any] = {}

    def rollout(step: int) -> None:
        found["batch"] = RolloutBatch(pair.generate(prompts, prompt, response, step), GROUP_SIZE, step)
        pair.engine.sleep()

    def check() -> None:
        with autocast(pair.mixed):
            found["gap"] = policy.check_engine(found["batch"])

    def update() -> None:
        batch = found["batch"]
        with autocast(pair.mixed):
            found["moments"] = policy.update(batch, batch.rewards, found["gap"], fresh=True).moments

    taken: dict[str, list[float]] = {"sync": [], "rollout": [], "check": [], "update": []}
    for step in range(STEPS + 1):
        if GPU:
            torch.cuda.reset_peak_memory_stats()
        phases = {"sync": lambda s=step: pair.sync(s), "rollout": lambda s=step: rollout(s)}
        for phase, function in {**phases, "check": check, "update": update}.items():
            taken[phase].append(seconds(function))
    label, batch = f"step, {model}, N={prompts}, G={GROUP_SIZE}", found["batch"]
    for phase, times in taken.items():  # the first step warms up
        yield Figure(f"{label}: {phase}", 1e3 * median(times[1:]), "ms")
    whole = median(map(sum, zip(*(times[1:] for times in taken.values()), strict=True)))
    yield Figure(f"{label}: whole", 1e3 * whole, "ms")
    yield Figure(f"{label}: tokens", sum(one.n_tokens for one in batch.rollouts) / whole, "tokens/s")
    yield Figure(f"{label}: |Δ log p|, mean", found["gap"].mean, "nats")
    yield Figure(f"{label}: M1 / M2", found["moments"].mean_square / found["moments"].square_mean, "")
    if GPU:
        yield Figure(f"{label}: peak of the policy's own memory", torch.cuda.max_memory_allocated() / GIB, "GiB")
    pair.engine.close()
