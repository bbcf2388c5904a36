"""What can be wrong with a run's settings and is cheap to find out, before a model loads or a file is written."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase

from oblr.baselines.base import Baseline, ever_moves, live_though_equal
from oblr.batch.types import ResponseTokens
from oblr.errors import SettingError
from oblr.losses.base import Surrogate
from oblr.policy.adapter import LoRA
from oblr.policy.export import try_export
from oblr.policy.fit import check_vocabulary, check_weights, without_numbers
from oblr.policy.loading import load_config
from oblr.policy.method import optimizer_of, takes_plain_steps
from oblr.policy.positions import check_lengths
from oblr.policy.step import PolicyModule
from oblr.run.checkpoint import meta, shapes
from oblr.run.host import check_installed
from oblr.run.manifest import read_manifest
from oblr.run.resumed import Difference, at, choose_checkpoint, differences, shown, unlike
from oblr.schedules.base import Schedule

#: Standard deviation of ``log π − log μ`` of a token where both are the same weights in bfloat16, nats; of
#: SmolLM2-135M by studies/ratios.py.
ROUNDING = 0.06
#: Largest share of a loss's factors, squared, that may be rounding. Ratios of sequences pass up to 64 tokens.
NOISE = 0.3
#: GiB that cards report which are sold as having so many: the rest is the driver's and, where memory corrects its own
#: errors at the cost of some of it, that. NVIDIA's A10 and L4, A100, A40 and L40S, A100 and H100, H200.
REPORTED = {24: 22.0, 40: 39.4, 48: 44.4, 80: 79.1, 141: 139.7}


def runs_vllm(name: str, engines: Mapping[str, Any]) -> bool:
    """Whether the engine ``rollout.engines.<name>`` is one of vLLM's that this run starts."""
    engine = engines.get(name, {})
    return engine.get("_target_", "").startswith(("oblr.rollout.vllm.", "oblr.rollout.server.")) and not engine.get(
        "url"
    )


def check_machine(gpus: int, gpu_memory_gib: float, made: Mapping[str, str], vllm: bool) -> None:
    """Whether this machine has what the experiment is written for: GPUs, and files, by the commands that make them.

    Raises:
        SettingError: it has not.
        HostError: what is installed does not fit it, see :func:`~oblr.run.host.check_installed`.
    """
    for command, path in made.items():
        if not Path(path).exists():
            raise SettingError("requires.made", f"there is no {path} yet", f"make it: {command}")
    check_installed(vllm, triton=True, gpus=gpus)
    found = torch.cuda.device_count()
    if found < gpus:
        raise SettingError(
            "requires.gpus",
            f"this experiment is written for {gpus} GPUs, and here are {found}",
            "run it where they are",
        )
    for i in range(gpus):
        memory, least = torch.cuda.get_device_properties(i).total_memory / 2**30, reported_gib(gpu_memory_gib)
        if memory < 0.98 * least:  # drivers differ
            raise SettingError(
                "requires.gpu_memory_gib",
                f"this experiment is written for GPUs of {gpu_memory_gib:g} GB, which report {least:g} GiB, and GPU "
                f"{i} has {memory:.1f}",
                "use larger GPUs or a smaller policy",
            )


def reported_gib(named: float) -> float:
    """GiB that a card of this name reports; a size that no card is called by is meant as it is."""
    return REPORTED.get(int(named), named) if named == int(named) else named


def check_policy(path: str, dtype: str, max_model_len: int) -> PretrainedConfig:
    """Whether the policy is one model for all lengths that the engine may produce; returns its configuration."""
    if dtype not in ("float32", "bfloat16"):
        raise SettingError("policy.dtype", f"{dtype!r} is not supported", "use float32 or bfloat16")
    config = load_config(path)
    without_numbers(config, path)
    check_lengths(config, max_model_len)
    return config


def check_engine(config: PretrainedConfig, name: str, engines: Mapping[str, Any]) -> None:
    """Whether vLLM can share the policy's heads out to as many GPUs as ``rollout.engines.<name>`` says."""
    size = engines.get(name, {}).get("tensor_parallel_size", 1)
    if size == 1:
        return
    heads = config.num_attention_heads
    pairs = getattr(config, "num_key_value_heads", None) or heads

    def fits(size: int) -> bool:  # a GPU has whole heads, and whole key-value heads or a copy of one
        return heads % size == 0 and (pairs % size == 0 or size % pairs == 0)

    if size < 1 or not fits(size):
        raise SettingError(
            f"rollout.engines.{name}.tensor_parallel_size",
            f"{size} GPUs cannot share the policy's {heads} attention heads and {pairs} key-value heads",
            f"use {', '.join(str(n) for n in range(1, heads + 1) if fits(n))}",
        )


def check_model(
    path: str,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    setting: str = "policy.path",
    by_name: bool = False,
    exported: bool = False,
) -> int:
    """Whether the parts of a model's folder fit each other; returns how many tokens it has an embedding of.

    Args:
        by_name: see :func:`~oblr.policy.fit.check_weights`.
        exported: whether it is to be written again with other weights.
    """
    check_weights(path, config, setting, by_name)
    vocabulary = check_vocabulary(path, config, tokenizer, setting)
    if exported:
        try_export(path, config, tokenizer, setting)
    return vocabulary


def check_served(path: str, config: PretrainedConfig, name: str, engines: Mapping[str, Any]) -> None:
    """Whether ``rollout.engines.<name>`` starts with the policy, or with another folder that can stand in for it."""
    served, setting = engines.get(name, {}).get("model", path), f"rollout.engines.{name}.model"
    if served == path:
        return
    other = load_config(served, setting)
    check_weights(served, other, setting)
    if weight_shapes(other, served, setting) != weight_shapes(config, path):
        raise SettingError(setting, f"{served} is of another architecture than {path}", "leave it out")


def weight_shapes(config: PretrainedConfig, path: str, setting: str = "policy.path") -> dict[str, torch.Size]:
    return {name: p.shape for name, p in without_numbers(config, path, setting).named_parameters()}


def check_folder(folder: Path, joining: bool) -> None:
    """Make the run folder; refuse one that holds a run already, unless this process resumes it or is part of it."""
    if not joining and (folder / "run.json").exists():
        raise SettingError(
            "paths.output_dir",
            f"{folder} already holds a run",
            "choose another folder, or resume it with ckpt_path=last",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise SettingError("paths.output_dir", f"cannot make {folder}: {error.strerror}", "choose another") from error
    if not writable:
        raise SettingError("paths.output_dir", f"{folder} is not writable", "choose another")


def trained(config: PretrainedConfig, lora: LoRA | None) -> dict[str, torch.Size]:
    """The shapes of what a run trains, by name: weights, or adapters.

    Raises:
        SettingError: the policy has no such layers as are to be adapted.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        if lora is not None:
            lora.attach(model)
    return {f"scorer.lm.{name}": p.shape for name, p in model.named_parameters() if p.requires_grad}


def find_checkpoint(
    ckpt_path: str | None, folder: Path, expected: Mapping[str, torch.Size], base: Mapping[str, Any]
) -> Path | None:
    """The checkpoint to resume from; ``last`` is the newest complete one in the run folder, ``auto`` too, if any.

    Args:
        expected: what it is to hold, see :func:`trained`.
        base: what trained adapters belong to, see :attr:`PolicyModule.base`.

    Raises:
        SettingError: it is missing, incomplete, or its weights are of another policy, or of other adapters.
    """
    path = None if ckpt_path is None else choose_checkpoint(ckpt_path, folder)
    if path is None:
        return None
    found = meta(path).get("oblr", {}).get("base", {})
    for name in base.keys() & found.keys():
        if found[name] != base[name]:
            raise other_part(path, name, found[name], base[name])
    if shapes(path) != expected:
        raise SettingError(
            "ckpt_path",
            f"{path} belongs to a policy of another architecture, or of other adapters",
            "resume it with its own policy.path, policy.adapter and policy.lora",
        )
    return path


def check_followed(path: Path, policy: PolicyModule, now: Mapping[str, Any]) -> list[Difference]:
    """Whether all that a checkpoint's run remembers means something to this one; returns where their settings differ.

    What follows from another difference is none of its own.

    Args:
        policy: this run's; :func:`find_checkpoint` has found that the weights are of one like it.
        now: this run's configuration, resolved where folders and the policy lie as they did for that run.

    Raises:
        SettingError: names the first setting that another run's memory is of, see :mod:`oblr.run.resumed`.
    """
    everything = meta(path)
    kept = everything.get("oblr", {})
    if not kept.get("run"):
        problem = f"{path} does not say what it was made with: it is of an earlier version"
        raise SettingError("ckpt_path", problem, "go on with the code that has written it")
    then, told, own = kept["run"]["config"], kept["run"]["told"], policy.run
    done, asked = read_manifest(path).order.step, at(own["config"], "steps")
    if asked < done:
        raise SettingError("steps", f"{path} has done {done} steps, more than {asked}", "ask for more, or begin anew")
    if "weights" in policy.base and "weights" not in kept["base"] and policy.path != then["policy"]["path"]:
        raise other_part(path, "policy.path", then["policy"]["path"], policy.path)
    parts: dict[str, Schedule | Baseline] = {"schedule": policy.schedule, "baseline": policy.baseline}
    remembering = ["optimizer", "rollout.train"]
    remembering += [name for name, part in parts.items() if kept[name] or part.state_dict()]
    watching = then["callbacks"].keys() & now["callbacks"].keys()
    remembering += [f"callbacks.{name}" for name in sorted(watching) if _class(then, name) in everything["callbacks"]]
    for name in remembering:
        if found := unlike(at(then, name), at(now, name), name, joined=name.startswith("callbacks.")):
            name, *values = found
            raise other_part(path, name.replace("rollout.train", "data.train"), *values)
    return [(name, at(then, name), at(own["config"], name)) for name, *_ in differences(told, own["told"])]


def _class(config: Mapping[str, Any], callback: str) -> str:
    """As Lightning names what a callback remembers."""
    return str(config["callbacks"][callback]["_target_"]).rpartition(".")[2]


def other_part(path: Path, name: str, kept: Any, now: Any) -> SettingError:
    return SettingError(
        "ckpt_path",
        f"{path} was made with {name}={shown(kept)}, not {shown(now)}, and what it remembers is of no use there",
        "leave that as it was, or begin another run without ckpt_path",
    )


def count_ranks(devices: Any, num_nodes: int) -> int:
    """Processes of a run, from ``trainer.devices`` and ``trainer.num_nodes``."""
    if isinstance(devices, int):
        return devices * num_nodes
    # a list of devices, or "auto"
    return num_nodes * (max(torch.cuda.device_count(), 1) if isinstance(devices, str) else len(devices))


def check_replicas(replicas: int, devices: Any, num_nodes: int) -> None:
    """Whether the ranks can be shared out between so many sharded copies of the policy."""
    ranks = count_ranks(devices, num_nodes)
    if replicas > 1 and (ranks % replicas or ranks == replicas):
        raise SettingError(
            "trainer.strategy.replicas",
            f"{ranks} ranks are not {replicas} copies of as many shards each, of two at least",
            "use a smaller divisor of trainer.devices × trainer.num_nodes, or trainer=ddp for whole copies",
        )


def check_refill(times: int, policy: PolicyModule) -> None:
    """Whether groups whose rewards agree have no gradient, so that others may take their place."""
    learns = "a KL penalty has one" if policy.kl is not None else f"{type(policy.baseline).__name__} gives them one"
    if times and (policy.kl is not None or live_though_equal(policy.baseline).any()):
        raise SettingError(
            "rollout.refill",
            f"groups of equal rewards would be replaced as if they had no gradient, and {learns}",
            "use rollout.refill=0, or a baseline of the group alone, such as baseline=rloo, without a penalty",
        )


def check_batch(
    baseline: Baseline, schedule: Schedule, prompts_per_step: int, group_size: int, devices: Any, num_nodes: int
) -> None:
    """Whether N and G suit the baseline, the schedule and the number of devices."""
    ranks = count_ranks(devices, num_nodes)
    if prompts_per_step % ranks:
        raise SettingError(
            "rollout.prompts_per_step",
            f"{prompts_per_step} prompts cannot be shared by {ranks} devices",
            "use a multiple of trainer.devices × trainer.num_nodes",
        )
    if schedule.needs_noise and prompts_per_step < 2:
        raise SettingError(
            "rollout.prompts_per_step",
            "one prompt a step shows no noise between prompts",
            "use 2 or more, or another schedule",
        )
    if baseline.leave_one_out and group_size < 2:
        raise SettingError(
            "rollout.group_size",
            f"{group_size} leaves no other response for the leave-one-out {type(baseline).__name__}",
            "use at least 2",
        )
    if not ever_moves(baseline, prompts_per_step, group_size):
        raise SettingError(
            "baseline",
            f"{type(baseline).__name__} compares responses, and with rollout.prompts_per_step={prompts_per_step} and "
            f"rollout.group_size={group_size} it has nothing to compare: no step would change the policy",
            "raise rollout.group_size, or use baseline=none or baseline=remax",
        )


def check_steps(schedule: Schedule, make_optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    """Whether the optimizer makes of a gradient the step that the schedule reckons with."""
    if schedule.needs_plain_steps and not takes_plain_steps(make_optimizer):
        kind, told = optimizer_of(make_optimizer)
        with_what = " with " + ", ".join(f"{name} {value}" for name, value in told.items()) if told else ""
        raise SettingError(
            "schedule",
            f"{type(schedule).__name__} says how long steps are, and those of {kind.__name__}{with_what} are not −η ĝ",
            "use schedule=linear_clipped, or plain optimizer=sgd",
        )


def check_loss(loss: Surrogate, dtypes: Collection[str], max_new_tokens: int) -> None:
    """Whether the loss's factors are more than rounding in these precisions of trainer, policy and engine.

    Engine and policy of the same weights differ by :data:`ROUNDING` a token in bfloat16. That is in every ratio before
    any weight has moved; ratios of sequences add it up, and narrow clipping acts on it.
    """
    if {"bfloat16", "bf16-mixed"}.isdisjoint(dtypes) or (noise := rounding(loss, max_new_tokens)) <= NOISE:
        return
    raise SettingError(
        "loss",
        f"in bfloat16, rounding alone changes the factors of this one by {100 * noise**0.5:.0f} % in responses of "
        f"{max_new_tokens} tokens",
        "use loss=policy_gradient loss.ratio=token loss.truncate=2, or clip further from 1",
    )


def rounding(loss: Surrogate, length: int, groups: int = 64, group_size: int = 8) -> float:
    """``Σ (f − f₁)²/Σ f₁²`` of on-policy responses: ``f`` with :data:`ROUNDING` in every token's ratio, ``f₁`` without.

    The advantages are 1 and −1 in turn, and all responses equally likely.
    """
    responses = groups * group_size
    generator = torch.Generator().manual_seed(0)
    logs = ROUNDING * torch.randn(responses, length, generator=generator, dtype=torch.float64) - ROUNDING**2 / 2
    exact = ResponseTokens(
        logs=torch.zeros(responses * length, dtype=torch.float64),
        energy=torch.full((responses * length,), 0.5, dtype=torch.float64),
        sequences=torch.arange(responses).repeat_interleave(length),
        behaviour=torch.full((responses,), -0.5 * length, dtype=torch.float64),
        lengths=torch.full((responses,), length),
        group_size=group_size,
    )
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(responses // 2)
    right, rounded = (loss.factors(t, advantages) for t in (exact, replace(exact, logs=logs.flatten())))
    return ((rounded - right).square().sum() / right.square().sum()).item()
