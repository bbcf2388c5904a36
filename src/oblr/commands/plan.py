"""``python src/train.py … plan=true``: what a run takes of each GPU, told by a machine without any."""

from dataclasses import replace
from typing import Any

import hydra
import rich
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from transformers import PretrainedConfig

from oblr.baselines.base import live_though_equal
from oblr.commands.checks import (
    check_batch,
    check_engine,
    check_policy,
    check_replicas,
    check_steps,
    count_ranks,
    reported_gib,
    weight_shapes,
)
from oblr.errors import SettingError
from oblr.plan.duration import Duration, Usual
from oblr.plan.machine import this_cpu
from oblr.plan.memory import GIB, Change, Device, Draft, Plan, advise, engine_memory, own_memory
from oblr.plan.pairs import Pair, pairs
from oblr.plan.roofline import GPUS, Speed, between_nodes
from oblr.plan.tables import advice, fastest, memory_table, remarks, speed_remarks, time_table, verdict
from oblr.plan.update import Batch, World
from oblr.policy.fit import check_weights
from oblr.policy.folder import has_weights
from oblr.run.paths import CONF
from oblr.run.terminal import busy

#: Share of a step that a change must save to be worth a word, and how many that promise most are planned anew.
GRAIN, TRIED = 0.01, 2


def show_plan(cfg: DictConfig) -> None:
    """Print the plan: memory, time, and what to change where it does not fit, or would be faster.

    Raises:
        SettingError: it does not fit.
    """
    busy("reckoning")
    planned_config(cfg)  # this machine's speed takes a while to measure
    speed = speed_of(cfg)
    drafted = draft(cfg, speed)
    plan = drafted.plan()
    console = rich.get_console()
    console.print(memory_table(plan, cfg.name))
    console.print(*remarks(plan), verdict(plan), sep="\n", soft_wrap=True, highlight=False)
    console.print(time_table(plan))
    console.print(*speed_remarks(plan, drafted.usual), sep="\n", soft_wrap=True, highlight=False)
    task = list(HydraConfig.get().overrides.task)

    def changed(overrides: list[str]) -> Draft:
        names = {override.split("=")[0] for override in overrides}
        kept = [override for override in task if override.split("=")[0] not in names]
        return draft(hydra.compose("train", [*kept, *overrides]), speed)

    if plan.lacking == 0:
        drafts = ((overrides, changed(overrides)) for overrides in faster(cfg, drafted, plan))
        tried = [Change(overrides, other.plan()) for overrides, other in drafts if saves(other.duration, plan.duration)]
        fitting = [change for change in tried if change.plan.lacking == 0]
        best = min(fitting, key=lambda change: change.plan.duration.step, default=None)
        return console.print(fastest(plan, best), soft_wrap=True, highlight=False)
    changes = advise(plan, candidates(cfg, plan), lambda overrides: changed(overrides).plan())
    if changes:
        console.print("to change, in this order:", *advice(plan, changes), sep="\n", soft_wrap=True, highlight=False)
    overrides = " ".join(override for change in changes for override in change.overrides)
    enough = bool(changes) and changes[-1].plan.lacking == 0
    raise SettingError(
        "requires.gpu_memory_gib",
        verdict(plan),
        f"it fits with {overrides}" if enough else "use more or larger GPUs, or a smaller policy",
    )


def on_gpu(cfg: DictConfig) -> bool:
    return cfg.requires.gpu_memory_gib > 0 or torch.cuda.is_available()


def speed_of(cfg: DictConfig) -> Speed:
    """Of the GPU that ``planned.gpu`` names or, for runs that need none, of this machine, which is measured."""
    if not on_gpu(cfg):
        return this_cpu()
    if cfg.planned.gpu not in GPUS:
        raise SettingError("planned.gpu", f"{cfg.planned.gpu!r} is unknown", f"use one of {', '.join(GPUS)}")
    nodes, replicas = cfg.trainer.num_nodes, cfg.trainer.strategy.get("replicas", 1)
    ranks = count_ranks(cfg.trainer.devices, nodes)
    return between_nodes(GPUS[cfg.planned.gpu], nodes, apart=(ranks // nodes) % max(1, ranks // replicas) == 0)


def usual(cfg: DictConfig) -> Usual:
    """The sequences that time is reckoned with: as ``planned`` says, or the longest there are."""
    longest, response = cfg.rollout.max_model_len, cfg.planned.response or cfg.rollout.max_new_tokens
    prompt = cfg.planned.prompt or max(1, longest - cfg.rollout.max_new_tokens)
    if not 0 < cfg.planned.live <= 1:
        raise SettingError("planned.live", f"{cfg.planned.live} is no share", "use more than 0 and at most 1")
    if prompt < 1 or response < 1 or prompt + response > longest:
        raise SettingError(
            "planned.prompt", f"{prompt} and {response} tokens are not within {longest}", "use less, or leave it out"
        )
    return Usual(prompt, response, cfg.planned.live, cfg.rollout.refill)


def make(cfg: DictConfig, speed: Speed | None = None) -> Plan:
    return draft(cfg, speed).plan()


def draft(cfg: DictConfig, speed: Speed | None = None) -> Draft:
    speed, sequences = speed or speed_of(cfg), usual(cfg)
    ranks = count_ranks(cfg.trainer.devices, cfg.trainer.num_nodes)
    config = planned_config(cfg)
    policy = hydra.utils.instantiate(cfg.policy, _convert_="all")
    if policy.penalises_tokens or live_though_equal(policy.baseline).all():
        sequences = replace(sequences, live=1.0)
    check_batch(
        *(policy.baseline, policy.schedule, cfg.rollout.prompts_per_step, cfg.rollout.group_size),
        *(cfg.trainer.devices, cfg.trainer.num_nodes),
    )
    check_steps(policy.schedule, policy.make_optimizer)
    strategy, replicas = cfg.trainer.strategy._target_, cfg.trainer.strategy.get("replicas", 1)
    check_replicas(replicas, cfg.trainer.devices, cfg.trainer.num_nodes)
    gpu = on_gpu(cfg)
    world = World(
        ranks=ranks,
        sharded=strategy == "oblr.run.strategies.FSDP",
        replicas=replicas,
        mixed=cfg.trainer.precision == "bf16-mixed",
        checkpointing=int(cfg.policy.activation_checkpointing),
        gpu=gpu,
    )
    rollout = cfg.rollout
    return Draft(
        policy,
        config,
        world,
        Batch(rollout.prompts_per_step // ranks, rollout.group_size, rollout.max_model_len, rollout.max_new_tokens),
        hydra.utils.instantiate(rollout.engines[rollout.engine], _convert_="all")(),
        Device(
            memory=reported_gib(cfg.requires.gpu_memory_gib) * GIB or own_memory(ranks // cfg.trainer.num_nodes),
            gpu=gpu,
            offload=cfg.policy.cpu_offload,
            bucketed=strategy == "oblr.run.strategies.DDP",
        ),
        speed,
        sequences,
        cfg.steps,
        rollout.ahead,
    )


def planned_config(cfg: DictConfig) -> PretrainedConfig:
    """Of the policy, which need be no more than a configuration; where there are weights, they have to fit it."""
    local = CONF / "architecture" / cfg.policy.path
    path = str(local) if local.exists() else cfg.policy.path
    config = check_policy(path, cfg.policy.dtype, cfg.rollout.max_model_len)
    check_engine(config, cfg.rollout.engine, cfg.rollout.engines)
    if has_weights(path):
        check_weights(path, config)
    return config


def beside(cfg: DictConfig, config: PretrainedConfig) -> float:
    """Bytes of a rank's device that the engine has while the policy trains, which decide what is left to the policy."""
    if "auto" not in (cfg.gradnorm.get("passes"), cfg.policy.token_budget):
        return 0.0
    ranks, gpu = count_ranks(cfg.trainer.devices, cfg.trainer.num_nodes), torch.cuda.is_available()
    device = Device(own_memory(ranks // cfg.trainer.num_nodes), gpu)
    engine = hydra.utils.instantiate(cfg.rollout.engines[cfg.rollout.engine], _convert_="all")()
    parameters = sum(shape.numel() for shape in weight_shapes(config, cfg.policy.path).values())
    return engine_memory(engine, config, parameters, cfg.rollout.max_model_len, device)[0].total()


def candidates(cfg: DictConfig, plan: Plan) -> list[list[str]]:
    """Changes that may help, those that cost least first; only of settings that this configuration has."""
    ranks, nodes, batch, device = plan.world.ranks, cfg.trainer.num_nodes, plan.batch, plan.device
    whole, engine = batch.group_size * batch.longest, f"rollout.engines.{cfg.rollout.engine}.gpu_memory_utilization"
    resident = plan.rollouts.total() - sum(
        plan.rollouts[kind] for kind in ("engine weights", "engine workspace", "KV cache", "server")
    )
    share = int(100 * (1 - resident / device.memory)) / 100
    budgets = [whole] * (plan.token_budget < whole) + [plan.token_budget // 2, plan.token_budget // 4]
    options: list[tuple[bool, dict[str, Any]]] = [
        (not plan.world.sharded and ranks > 1, {"trainer": "fsdp", "trainer.devices": ranks // nodes}),
        (plan.world.replicas > 1, {"trainer.strategy.replicas": 1}),
        (plan.passes == "one", {"gradnorm.passes": "two"}),
        (plan.world.checkpointing != 1, {"policy.activation_checkpointing": "true"}),
        *((True, {"policy.token_budget": budget}) for budget in budgets),
        (share > 0, {engine: share}),
        (HydraConfig.get().runtime.choices["optimizer"] != "sgd", {"optimizer": "sgd"}),
        (ranks == 1, {"trainer": "fsdp", "trainer.devices": 8}),
        (ranks > 1, {"trainer": "fsdp", "trainer.num_nodes": 2 * nodes}),
        (not device.offload, {"policy.cpu_offload": "true"}),
    ]
    return [
        [f"{name}={value}" for name, value in settings.items()]
        for useful, settings in options
        if useful and all(has(cfg, name) for name in settings)
    ]


def faster(cfg: DictConfig, drafted: Draft, plan: Plan) -> list[list[str]]:
    """Changes that may save time, those that promise most first; only of settings that there are."""
    engine, duration = f"rollout.engines.{cfg.rollout.engine}", plan.duration
    eager = has(cfg, f"{engine}.enforce_eager") and OmegaConf.select(cfg, f"{engine}.enforce_eager")
    norms = duration.parts.get("norms", 0.0) * (cfg.gradnorm.tier == "exact")
    options: list[tuple[float, dict[str, Any]]] = [
        (duration.step - norms, {"gradnorm": "sketch"}),
        (duration.step - duration.eager * bool(plan.device.gpu and eager), {f"{engine}.enforce_eager": "false"}),
    ]
    options += [(pair.seconds, overrides_of(cfg, plan, pair)) for pair in pairs(drafted, plan)]
    saving = [
        each for each in options if each[0] < (1 - GRAIN) * duration.step and all(has(cfg, name) for name in each[1])
    ]
    saving.sort(key=lambda option: option[0])
    return [[f"{name}={value}" for name, value in settings.items()] for _, settings in saving[:TRIED]]


def overrides_of(cfg: DictConfig, plan: Plan, pair: Pair) -> dict[str, Any]:
    """The settings in which ``pair`` differs; what is ``auto`` comes to the same passes by itself."""
    every = {0: "false", 1: "true"}.get(pair.every, pair.every)
    differing: list[tuple[bool, str, Any]] = [
        (pair.every != plan.world.checkpointing, "policy.activation_checkpointing", every),
        (pair.tokens != plan.token_budget, "policy.token_budget", pair.tokens),
        (plan.norms and cfg.gradnorm.passes not in ("auto", pair.passes), "gradnorm.passes", pair.passes),
    ]
    return {name: value for differs, name, value in differing if differs}


def saves(changed: Duration, planned: Duration) -> bool:
    """Whether by more than the prediction's own grain."""
    return changed.step < (1 - GRAIN) * planned.step


def has(cfg: DictConfig, name: str) -> bool:
    path, _, key = name.rpartition(".")
    return key in (OmegaConf.select(cfg, path) if path else cfg)
