"""What settings may be together, as far as they alone tell.

The rest is told by :mod:`oblr.commands.checks` and the classes.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from oblr.errors import SettingError


def check_rules(cfg: DictConfig, script: str) -> None:
    """Raises SettingError for the first rule that the settings of a script break."""
    for problem in RULES[script](lambda path: OmegaConf.select(cfg, path)):
        raise problem


def training(get: Callable[[str], Any]) -> Iterator[SettingError]:
    longest, context = get("rollout.max_new_tokens"), get("rollout.max_model_len")
    if longest is not None and context is not None and longest >= context:
        yield SettingError(
            "rollout.max_new_tokens",
            f"{longest} leaves no room for a prompt in rollout.max_model_len={context}",
            "shorten responses, or raise that up to the policy's context",
        )
    prompts, devices, nodes = get("rollout.prompts_per_step"), get("trainer.devices"), get("trainer.num_nodes")
    ranks = (devices if isinstance(devices, int) else len(devices)) * nodes if devices not in (None, "auto") else 1
    if prompts is not None and prompts % ranks:
        yield SettingError(
            "rollout.prompts_per_step",
            f"{prompts} prompts cannot be shared by {ranks} devices",
            "use a multiple of trainer.devices × trainer.num_nodes",
        )
    if not isinstance(devices, int | str | None) and list(devices) != list(range(len(devices))):
        yield SettingError(
            "trainer.devices",
            f"{list(devices)} picks GPUs, and engines and what is free are those of the first ones",
            f"let the run see no others: CUDA_VISIBLE_DEVICES={seen(devices)} trainer.devices={len(set(devices))}",
        )
    if ranks > 1 and str(get("trainer.strategy._target_")).endswith(".SingleDevice"):
        yield SettingError(
            "trainer.devices",
            f"trainer=single has one rank, and trainer.devices × trainer.num_nodes is {ranks}",
            "use trainer=ddp or trainer=fsdp",
        )
    warm_up, steps = get("schedule.warm_up") or 0, get("steps")
    if steps is not None and warm_up >= steps:
        yield SettingError("schedule.warm_up", f"{warm_up} is not less than the run's {steps} steps", "shorten it")
    if get("trainer.gradient_clip_val") is not None:
        yield SettingError(
            "trainer.gradient_clip_val",
            "the step has an optimizer of its own",
            "clip by schedule=noise schedule.power=0.5",
        )
    if get("optimizer.nesterov") and not get("optimizer.momentum"):
        yield SettingError("optimizer.nesterov", "there is no velocity to look ahead with", "give optimizer.momentum")
    betas = get("optimizer.betas")
    if betas is not None and len(betas) != 2:
        yield SettingError("optimizer.betas", f"{list(betas)} are not two numbers", "as in [0.9, 0.95]")
    young = not get("rollout.ahead") and get("rollout.recording.replay") is None
    if get("policy.max_noise") is not None and young:
        yield SettingError("policy.max_noise", "no rollouts are old", "use rollout.ahead=1 or more, or null")
    if get("policy.max_noise") is None and get("policy.beyond") not in (None, "drop"):
        yield SettingError("policy.beyond", "nothing is beyond policy.max_noise=null", "give policy.max_noise")
    if get("policy.cpu_offload") and not str(get("trainer.strategy._target_")).endswith(".FSDP"):
        yield SettingError("policy.cpu_offload", "only shards can lie in host memory", "use trainer=fsdp")
    yield from choice_of_problems(get)
    samples = get("callbacks.benchmarks.samples")
    if samples is not None and max(get("callbacks.benchmarks.k"), default=1) > samples:
        yield SettingError("callbacks.benchmarks.k", f"none may exceed samples={samples}", "use less, or more samples")


def seen(devices: Iterable[int]) -> str:
    """Of the GPUs that this process sees, these, as ``CUDA_VISIBLE_DEVICES`` names them."""
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ",".join(names[i] if i < len(names) else str(i) for i in dict.fromkeys(devices))


def choice_of_problems(get: Callable[[str], Any]) -> Iterator[SettingError]:
    low, high = get("data.difficulty.low"), get("data.difficulty.high")
    if low is not None and high is not None and low > high:
        yield SettingError("data.difficulty.low", f"{low} exceeds data.difficulty.high={high}", "lower it")
    if str(get("data.order")).endswith("_first") and get("data.difficulty.path") is None:
        yield SettingError("data.order", "it needs pass rates", "give data.difficulty.path, a result of src/eval.py")


def evaluation(get: Callable[[str], Any]) -> Iterator[SettingError]:
    compared = get("compare")
    if compared is not None:
        if len(compared) != 2:
            yield SettingError("compare", f"{list(compared)} are not two folders", "use compare=[A,B]")
        return
    if get("rescore") is not None:
        return
    if not get("model"):
        yield SettingError("model", "none is given", "give a Hugging Face folder, a hub id, or last")
    if not get("benchmarks"):
        yield SettingError("benchmarks", "none is given", "give some, such as benchmarks=[chain_sum]")
    samples, ks, temperature = get("samples"), list(get("k")), get("temperature")
    if max(ks, default=1) > samples:
        yield SettingError("k", f"{ks} are not numbers from 1 to samples={samples}", "use such, or more samples")
    if temperature == 0 and samples > 1:
        yield SettingError("samples", "greedy responses to a problem are all the same", "use 1 with temperature=0")
    if 0 < temperature < 0.01:
        yield SettingError(
            "temperature", f"{temperature:g} is less than engines tell from 0", "use 0, or at least 0.01"
        )


def pretraining(get: Callable[[str], Any]) -> Iterator[SettingError]:
    shape = "pretraining.architecture"
    heads, pairs = get(f"{shape}.num_attention_heads"), get(f"{shape}.num_key_value_heads")
    if heads is not None and pairs is not None and heads % pairs:
        yield SettingError(f"{shape}.num_key_value_heads", f"{pairs} cannot serve {heads} heads alike", "use a divisor")
    longest, context = get("pretraining.max_tokens"), get(f"{shape}.max_position_embeddings")
    if longest is not None and context is not None and longest > context:
        yield SettingError("pretraining.max_tokens", f"{longest} tokens exceed the context of {context}", "lower it")
    mixture = get("pretraining.corpus.mixture")
    if mixture is not None and not sum(mixture.values()) > 0:
        yield SettingError("pretraining.corpus.mixture", "all shares are 0", "give one of them some")


RULES = {"train": training, "eval": evaluation, "pretrain": pretraining}
