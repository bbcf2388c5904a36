"""Look at a whole configuration before anything that takes seconds is imported."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, OmegaConf

from oblr.errors import SettingError
from oblr.kinds import Part, check, shown
from oblr.settings import scripts
from oblr.settings.declared import OURS, beside, declared
from oblr.settings.kinds import Parts, Section
from oblr.settings.others import OTHERS
from oblr.settings.rules import check_rules

SECTIONS = dict | Part | Parts
#: What evaluation takes and training does not, with the reason.
DISTORTING = {
    f"rollout.{name}": "training samples from the whole distribution, which its log-probabilities are of"
    for name in ("top_p", "top_k", "min_p")
}
#: A setting's path, kind and value.
Found = tuple[str, Any, Any]


def check_settings(cfg: DictConfig, script: str) -> None:
    """Whether a script (``train``, ``eval`` or ``pretrain``) can work with these settings, as far as they alone tell.

    What refers to others is looked at after those, so that the line names the one that was given.

    Raises:
        SettingError: for the first one that is unknown, has no value, or a value that no run can work with.
    """
    for path, value in leaves(OmegaConf.to_container(cfg, resolve=False)):
        if value == "???":
            raise SettingError(path, "it has no value", f"give it one, as in {path}=…")
    for name in scripts.SCRIPTS[script].keys() - scripts.BENCHMARKS.keys():
        if name not in cfg:
            raise SettingError(name, "it is missing", f"give one, as in {name}=…")
    found = settings(cfg, script)
    for path, kind, value in found:
        if "${" not in str(value):
            _check_value(kind, value, path)
    for path, kind, value in found:
        if "${" in str(value):
            there = OmegaConf.select(cfg, path)
            if not isinstance(kind, SECTIONS):
                _check_value(kind, there, path)
            elif not OmegaConf.is_dict(there) and not (there is None and getattr(kind, "optional", False)):
                raise SettingError(path, f"{value} is {shown(there)}", "it should be a section of settings")
    check_rules(cfg, script)


def settings(cfg: DictConfig, script: str) -> list[Found]:
    """All settings that are no sections, or refer to one.

    Raises:
        SettingError: one is unknown, or a section is none.
    """
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    referred = {name for _, value in leaves(plain) for name in _names(value)}
    return list(_in_section(scripts.SCRIPTS[script], plain, "", referred))


def leaves(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of what is no section, or is an empty one."""
    for name, value in section.items():
        own = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict) and value:
            yield from leaves(value, own)
        else:
            yield own, value


def _names(value: object) -> list[str]:
    """Of settings, in the references that a value is made of."""
    return [name for reference in re.findall(r"\$\{([^}]*)", str(value)) for name in re.findall(r"\w+", reference)]


def _in_section(schema: Section, section: Any, path: str, referred: set[str]) -> Iterator[Found]:
    for key, value in section.items():
        name, own = str(key), f"{path}.{key}" if path else str(key)
        if name in schema and name != "*":
            yield from _in(schema[name].kind, value, own, referred)
        elif "*" in schema and isinstance(value, Mapping):
            yield from _in(schema["*"].kind, value, own, referred)
        elif own in DISTORTING:
            raise SettingError(own, DISTORTING[own], "use rollout.temperature; src/eval.py takes it")
        elif name not in referred and not re.fullmatch("_[a-z]+_", name):
            near = get_close_matches(name, [known for known in schema if known != "*"], 1, cutoff=0.5)
            fix = f"did you mean {near[0]}?" if near else f"there are {', '.join(schema) or 'none'}"
            raise SettingError(own, "there is no such setting", fix)


def _in(kind: Any, value: Any, path: str, referred: set[str]) -> Iterator[Found]:
    """The setting itself, or those of the section that it is."""
    if not isinstance(kind, SECTIONS) or (isinstance(value, str) and "${" in value):
        yield path, kind, value
    elif isinstance(kind, Part):
        if value not in (None, {}) or not kind.optional:
            yield from _in_part(kind, value, path, referred)
    elif not isinstance(value, Mapping):
        raise SettingError(path, f"{shown(value)} cannot work", "it should be a section of settings")
    elif isinstance(kind, dict):
        yield from _in_section(kind, value, path, referred)
    else:
        for name, part in value.items():
            yield from _in(kind.of, part, f"{path}.{name}", referred)


def _in_part(kind: Part, value: Any, path: str, referred: set[str]) -> Iterator[Found]:
    if not isinstance(value, Mapping) or not isinstance(value.get("_target_"), str):
        remedy = f"; ~{path} leaves it out" if path.startswith("callbacks.") else ""
        raise SettingError(path, f"{shown(value)} names no class", f"it should have a _target_{remedy}")
    target, switch = value["_target_"], value.get("_partial_", False)
    if not isinstance(switch, bool):
        raise SettingError(f"{path}._partial_", f"{shown(switch)} cannot work", "it should be true or false")
    section = declared(target) if target.startswith(OURS) else OTHERS.get(target)
    if target.startswith(OURS) and section is None:
        near = get_close_matches(target, beside(target), 1, cutoff=0)
        raise SettingError(f"{path}._target_", f"there is no {shown(target)}", f"did you mean {near[0]}?")
    if target.startswith(OURS) and not f"{target}.".startswith(f"{kind.room}." if kind.room else ""):
        raise SettingError(f"{path}._target_", f"{target} is none of {kind.room}", "choose one from there")
    if section is not None:
        yield from _in_section(section, value, path, set())  # a class has no variables of the user's
        return
    for name, part in value.items():  # somebody else's settings are its own affair; ours among them are not
        if isinstance(part, Mapping) and "_target_" in part:
            yield from _in_part(Part(), part, f"{path}.{name}", referred)


def _check_value(kind: Any, value: Any, path: str) -> None:
    check(path, kind, OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value)
