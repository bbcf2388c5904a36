"""What every setting may be, in one place: looked at before anything that takes seconds is imported.

A rule belongs to all settings whose path it matches, the first one that does; ``*`` stands for any part of a path. What
depends on the machine, on files or on other settings is found later, by :mod:`oblr.checks` and the classes themselves.
What a class of somebody else's takes is its own affair.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError

from oblr.errors import SettingError
from oblr.run.moved import renewed
from oblr.run.terminal import print_warning

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Number = float
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
Seed = Annotated[int, Ge(0), Lt(2**32)]
Text = str | None
Precision = Literal["float32", "bfloat16"]

SECTIONS = (
    *("baseline", "callbacks", "data", "data.held_out", "data.train", "gradnorm", "logger", "loss", "optimizer"),
    *("paths", "planned", "policy", "pretraining", "prompt", "requires", "reward", "rollout", "rollout.engines"),
    *("schedule", "schedule.schedule", "trainer", "benchmarks", "policy.lora"),
)
SETTINGS: dict[str, Any] = {
    # sections, where something else stands in their place
    "*_target_": str,
    "*_partial_": bool,
    "kl": dict[str, Any] | None,
    **dict.fromkeys(SECTIONS, dict[str, Any]),
    "data*.params.*": Any,  # of the task
    # the run
    "seed": Seed,
    "*.seed": Seed,
    "steps": Count,
    "eta0": Positive,
    "plan": bool,
    "planned.gpu": Literal["h100", "h200"],
    "planned.live": PositiveShare,
    "planned.*": Count | None,
    "requires.gpus": Natural,
    "requires.gpu_memory_gib": NonNegative,
    "requires.made.*": str,
    "trainer.devices": Count | list[Natural] | Literal["auto"],
    "trainer.num_nodes": Count,
    "trainer.precision": Literal["32-true", "bf16-mixed"],
    "trainer.gradient_clip_val": Positive | None,
    "trainer.max_epochs": Count,
    "trainer.max_steps": Count,
    "trainer.log_every_n_steps": Count,
    "trainer.num_sanity_val_steps": Natural,
    "trainer.enable_*": bool,
    "trainer.logger": bool,
    # the policy and its step
    "policy.dtype": Precision,
    "policy.logprob_gap_*": Positive,
    "policy.token_budget": Count,
    "policy.updates_per_batch": Count,
    "policy.activation_checkpointing": bool,
    "policy.cpu_offload": bool,
    "policy.attention": Literal["auto", "varlen", "sdpa"],
    "policy.temperature": Positive,
    "policy.adapter": Literal["none", "lora"],
    "policy.lora.rank": Count,
    "policy.lora.alpha": Positive,
    "policy.lora.targets": Literal["all-linear"] | list[str],
    "gradnorm.tier": Literal["exact", "sketch", "logit", "length", "uniform"],
    "gradnorm.passes": Literal["auto", "one", "two"],
    "gradnorm.probes": Count,
    "*baseline*.form": Literal["leave_one_out", "cross_fitted", "pooled"],
    "*baseline*.decay": Decay,
    "*baseline*.trace": Share,
    "*baseline*.ridge": Positive,
    "*baseline*.pseudo_counts": list[NonNegative],
    "baseline.normalise": bool,
    "baseline.pooled": bool,
    "baseline.weighted": bool,
    "loss.ratio": Literal["sequence", "token", "none"],
    "loss.truncate": Annotated[float, Ge(1)] | None,
    "loss.normalise": Literal["none", "response", "group"],
    "loss.clip": NonNegative | None,
    "loss.clip_*": NonNegative,
    "loss.step": Positive,
    "loss.*_shift": Positive,
    "kl.estimator": Literal["k1", "k2", "k3"],
    "kl.coefficient": NonNegative,
    "schedule*.estimator": Literal["plug_in", "debiased", "ema"],
    "schedule*.decay": Decay,
    "schedule*.level_steps": Count,
    "schedule*.power": PositiveShare,
    "schedule*.floor": Share,
    "schedule*.warm_up": Natural,
    "schedule*.steps": Count,
    "schedule*.lr": Positive,
    "schedule*.eta0": Positive,
    "optimizer.lr": NonNegative,
    "optimizer.weight_decay": NonNegative,
    "optimizer.betas": list[Decay],
    # rollouts
    "rollout.group_size": Count,
    "rollout.prompts_per_step": Count,
    "rollout.max_new_tokens": Count,
    "rollout.temperature": Positive,
    "rollout.restarts": Natural,
    "rollout.sync_timeout": Positive,
    "rollout.reward_pool.workers": Count,
    "rollout.reward_pool.*": Positive,
    "rollout.engine": str,
    "rollout*.max_model_len": Count | None,
    "rollout.engines.*.transfer": Literal["auto", "http", "nccl"],
    "rollout.engines.*.gpus": int | Text,
    "rollout.engines.*.gpu_memory_utilization": PositiveShare | None,
    "rollout.engines.*.tensor_parallel_size": Count,
    "rollout.engines.*.max_num_*": Count | None,
    "rollout.engines.*.enforce_eager": bool,
    # problems and rewards
    "data*.max_prompt_tokens": Count | None,
    "*.limit": Count | None,
    "*.size": Count | None,
    "*.optional": bool,
    "data*.difficulty.path": Text,
    "data*.difficulty.*": Share,
    "data.weights.*": Positive,
    "*prompt.chat": bool,
    "*prompt.examples": list[list[str]],
    "*reward*.require_end": bool,
    "*reward*.weight": Number,
    "*reward*.length_penalty": NonNegative,
    "*reward*.kind": Literal["rouge1", "rouge2", "rougeL"],
    # observers
    "callbacks.*.every": Count,
    "callbacks.*.samples": Count,
    "callbacks.*.patience": Count,
    "callbacks.*.keep": Count,
    "callbacks.*.k": list[Count],
    "callbacks.rollouts.limit_mib": Positive,
    "callbacks.monitors.*.bound": Positive,
    # evaluation
    "model": Text | list[str],
    "by": Text | list[str],
    "rescore": Text,
    "dtype": Precision,
    "chunk": Count,
    "samples": Count,
    "k": list[Count],
    "limit": Count | None,
    "temperature": NonNegative,
    "*max_new_tokens": Count,
    "compare": list[str] | None,
    # pretraining
    "pretraining.lr": Positive,
    "pretraining.*.tie_word_embeddings": bool,
    "pretraining.corpus.mixture.*": Share,
    "pretraining.corpus.longest_pause": Natural,
    "pretraining.architecture.*": Count,
    "pretraining.*": Count,
}

#: Where the classes are from whose settings have rules.
OURS = ("oblr.", "callbacks.", "lightning.", "torch.")


def check_settings(cfg: DictConfig) -> None:
    """Look at every setting that has a value of its own; a reference to another is looked at there.

    Raises:
        SettingError: for the first one that no run can work with, or that has no value.
    """
    for path, value in leaves(OmegaConf.to_container(cfg, resolve=False)):
        if value == "???":
            raise SettingError(path, "it has no value", f"give it one, as in {path}=…")
        if "${" in str(value):
            continue
        try:
            TypeAdapter(rule(path), config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            wanted = dict.fromkeys(problem["msg"].removeprefix("Input ") for problem in error.errors())
            raise SettingError(path, f"{value!r} cannot work", f"it {', or '.join(wanted)}") from error


def rule(path: str) -> Any:
    """The type of a setting's value; that of text, if nothing else is said."""
    return next((rule for pattern, rule in SETTINGS.items() if fnmatchcase(path, pattern)), Any)


def leaves(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of what is no section; of a section for another's class, that class alone."""
    if not str(section.get("_target_", OURS[0])).startswith(OURS):
        section = {"_target_": section["_target_"]}
    for name, value in section.items():
        own = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict) and value:
            yield from leaves(value, own)
        else:
            yield own, value


def renew_paths(cfg: DictConfig) -> None:
    """Name classes by their paths of today, and say so."""
    for path, value in leaves(OmegaConf.to_container(cfg, resolve=False)):
        if path.endswith("_target_") and (new := renewed(str(value))) != value:
            OmegaConf.update(cfg, path, new)
            print_warning(f"{path}: {value} is {new} now; the old path goes with release 0.3")
