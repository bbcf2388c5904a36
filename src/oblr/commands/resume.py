"""The configuration of a run that goes on: its own, with what is typed now on top.

Its checkpoint has the overrides that it was told, and what they were composed to. Hydra composes both lists as one, so
that groups and what refers to other settings work as ever. Where today's configuration files say something else than
those of then, the run keeps what it had.
"""

import argparse
import copy
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from oblr.commands.compose import RUN_FOLDER, compose, job_config, newest_run
from oblr.commands.foreign import check_foreign, plain_overrides
from oblr.commands.written import written
from oblr.errors import SettingError
from oblr.run.resumed import choose_checkpoint, completed, differences, with_changes
from oblr.run.secrets import forgotten
from oblr.run.stopping import process
from oblr.run.terminal import print_warning
from oblr.settings.check import check_settings

#: What says where runs lie.
LOCATING = ("experiment", "name", "paths")


def resuming(arguments: Sequence[str]) -> list[str] | None:
    """The overrides of a command line that names a checkpoint; None of any other, and where Hydra is asked for more."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument("overrides", nargs="*")
    asked, others = parser.parse_known_intermixed_args(arguments)
    if others or not any(_first(override) == "ckpt_path" for override in asked.overrides):
        return None
    own = [f"hydra.searchpath=[file://{asked.config_dir.resolve()}]"] if asked.config_dir else []
    return [*asked.overrides, *own]


def locates(override: str) -> bool:
    """Whether an override matters to which run is meant."""
    return _first(override) in (*LOCATING, "ckpt_path", "hydra")


def _first(override: str) -> str:
    """Of a setting's name the first part: a.b=1, +a.b=1, ~a.b → a."""
    found = re.match(r"[+~]*(\w+)", override)
    return found[1] if found else ""


def told() -> list[str]:
    """The overrides of the run that Hydra is running, and where it looks for configuration files besides."""
    if not HydraConfig.initialized():
        return []
    hydra = HydraConfig.get()
    folders = [source.path for source in hydra.runtime.config_sources if "command-line" in source.provider]
    besides = ",".join(f"file://{folder}" for folder in folders)
    return [*hydra.overrides.task, *([f"hydra.searchpath=[{besides}]"] if besides else [])]


def resumed(cfg: DictConfig, typed: Sequence[str]) -> DictConfig:
    """The configuration of the run that ``ckpt_path`` names, with ``typed`` on top; where it names none, ``cfg``.

    Args:
        cfg: composed of ``typed``, or of as much of it as tells where the run lies.

    Raises:
        SettingError: there is no such checkpoint, or this version does not have its settings.
    """
    asked = OmegaConf.select(cfg, "ckpt_path")
    if not isinstance(asked, str):
        return cfg
    folder = _folder(cfg, asked, typed)
    checkpoint = choose_checkpoint(asked, folder, lambda line: None if process.silent else print_warning(line))
    if checkpoint is None:
        return job_config(compose("train", typed, RunMode.RUN))
    from oblr.run.checkpoint import meta  # loads torch, which a run that begins need not wait for

    kept = run_of(meta(checkpoint), checkpoint)
    if not kept:  # which is said where it is known whose checkpoint this is
        return job_config(compose("train", typed, RunMode.RUN))
    own = _of_run(plain_overrides(kept["overrides"], typed, checkpoint))
    before = compose("train", own, RunMode.RUN)
    now = compose("train", together(own, typed, before.hydra.runtime.choices), RunMode.RUN)
    cfg = job_config(now)
    then, today = (_plain(job_config(one)) for one in (before, now))
    if older := any(differences(kept["told"], then)):
        cfg = OmegaConf.create(with_changes(completed(kept["told"], then), then, today))
        cfg.paths = now.paths
    if asked in ("last", "auto"):
        OmegaConf.update(cfg, "paths.output_dir", str(folder))
    OmegaConf.update(cfg, "ckpt_path", str(checkpoint))
    check_foreign(cfg, typed, "ckpt_path", checkpoint)
    if older:
        _check_version(cfg, checkpoint)
    for path in forgotten(_plain(cfg)):
        raise SettingError(
            path,
            "its value was kept nowhere, since it is a secret",
            f"give it again, best as {path}='${{oc.env:NAME}}'",
        )
    return cfg


def run_of(everything: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    """The run that a checkpoint is of: overrides, and what they were composed to, twice; empty where it does not say.

    Raises:
        SettingError: it is not what a run writes.
    """
    kept = everything.get("oblr", {}).get("run") if isinstance(everything.get("oblr", {}), dict) else 0
    if kept in (None, {}):
        return {}
    if isinstance(kept, dict) and isinstance(kept.get("overrides"), list):
        sections = [kept.get(name) for name in ("told", "config")]
        if all(isinstance(one, dict) for one in sections):
            return kept
    raise SettingError("ckpt_path", f"{checkpoint} says of its run what no run writes", "resume another one")


def where_it_was(cfg: DictConfig, checkpoint: Path) -> dict[str, Any]:
    """The configuration resolved, had folders and policy the places that they had when the checkpoint was made.

    Places may have changed, which is no difference: what the policy is has been compared.
    """
    from oblr.run.checkpoint import meta

    then, like = run_of(meta(checkpoint), checkpoint).get("config"), copy.deepcopy(cfg)
    if then:
        like.paths = then["paths"]
        like.policy.path = then["policy"]["path"]
        check_foreign({"paths": then["paths"], "policy": {"path": then["policy"]["path"]}}, [], "ckpt_path", checkpoint)
    return written(like)


def _folder(cfg: DictConfig, asked: str, typed: Sequence[str]) -> Path:
    """Of the run; ``last`` is the newest of its name, and where none is typed the newest of all."""
    if asked == "last" and RUN_FOLDER not in os.environ and not any(_first(own) in LOCATING for own in typed):
        return Path(newest_run(str(Path(cfg.paths.runs).parent), "*/*"))
    return Path(cfg.paths.output_dir)


def _of_run(overrides: Sequence[str]) -> list[str]:
    """Without what says where it lies, and what it went on from."""
    places = ("paths.output_dir", "ckpt_path")
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [str(override.input_line) for override in parsed if override.key_or_group not in places]


def together(own: Sequence[str], typed: Sequence[str], choices: DictConfig) -> list[str]:
    """The run's own overrides, and those typed now: of what is given twice the latter count.

    Where another choice of a group is typed, settings of the choice before go with it.

    Args:
        choices: of the run, by group.
    """
    parse = OverridesParser.create().parse_overrides
    loader = GlobalHydra.instance().hydra.config_loader  # type: ignore[union-attr]
    now = {override.get_key_element(): override for override in parse(list(typed))}  # of one twice the latter counts
    exchanged = [
        f"{override.key_or_group}."
        for override in now.values()
        if loader.get_group_options(override.key_or_group)
        and override.get_value_element_as_str() != str(choices.get(override.key_or_group))
    ]
    kept = {
        override.get_key_element(): override
        for override in parse(list(own))
        if not override.key_or_group.startswith(tuple(exchanged))
    }
    merged = kept | now
    return [str(override.input_line) for override in merged.values()]


def _plain(cfg: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(cfg, resolve=False)  # type: ignore[return-value]


def _check_version(cfg: DictConfig, checkpoint: Path) -> None:
    try:
        check_settings(cfg, "train")
    except SettingError as error:
        problem = f"{checkpoint} was made with settings of another version: {error}"
        raise SettingError("ckpt_path", problem, "go on with the code that has written it") from error
