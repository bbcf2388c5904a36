"""A configuration that was read from a folder brings settings; nothing that it names runs unless the user names it too.

Hydra makes an object of whatever a ``_target_`` says, and OmegaConf calls the functions in ``${name:…}``, one of which
reads the environment. Both are fine in what the user writes. Who has written a checkpoint, or the folder of an
evaluation, is not known. So of those count what stands in the clone's configuration files, in those of the user's own
``--config-dir``, or on the command line.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from antlr4 import ParserRuleContext
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError
from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser
from omegaconf.grammar_parser import parse

from oblr.errors import SettingError
from oblr.run.paths import CONF

#: Functions of the configuration files, which tell nothing but places, and what other settings say.
HARMLESS = {"root", "models", "computed_in", "run_folder", "hydra", "oc.select"}
#: Of Hydra, a function that finds another one, by its argument ``path``.
FINDS = re.compile(r"hydra\.utils\.get_(class|method|object|static_method)")
#: Settings that take protection away, and are nobody's but the user's to give.
LIFTS = re.compile(r"(?:^|\.)(trust|readable)(?:\.\d+)?$")
#: A setting's path and its value.
Leaf = tuple[str, Any]


def check_foreign(cfg: Any, typed: Sequence[str], setting: str, source: Path) -> None:
    """Whether a configuration from ``source`` names anything to run, or frees a reward, as nobody here has.

    Args:
        cfg: composed, or a container; references are looked at before they are followed.
        typed: the overrides of the command line, ``hydra.searchpath`` among them.
        setting: what has named ``source``.

    Raises:
        SettingError: names the first, and what to type where it is meant to run.
    """
    everything = list(given(typed))
    ours = {value for _, value in everything if isinstance(value, str)}
    raw = OmegaConf.to_container(cfg, resolve=False) if OmegaConf.is_config(cfg) else cfg
    for path, value in leaves(raw):
        _check_reference(path, value, ours, setting, source)
    resolved = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else cfg
    freed = {found[1] for path, value in everything if value and (found := LIFTS.search(path))}
    for path, value in leaves(resolved):
        if value and (lifts := LIFTS.search(path)) and lifts[1] not in freed:
            raise SettingError(
                setting,
                f"{source} would let responses do more than rewards may, by {path}={value!s:.80}",
                f"where that is right, give {path[: lifts.end(1)]} yourself",
            )
    for path, value in named(resolved):
        if value not in ours:
            raise SettingError(
                setting,
                f"{source} would run {value:.80} as {path}, which neither the command line nor a file of yours names",
                f"where that is right, give the --config-dir that has it, or {path}={value:.80}",
            )


def _check_reference(path: str, value: Any, ours: set[str], setting: str, source: Path) -> None:
    if isinstance(value, str) and value not in ours and (called := _called(value) - HARMLESS):
        raise SettingError(
            setting,
            f"{source} would call {min(called):.40} in {path}, which neither you nor a file of yours does",
            f"where that is right, give {path} a value of your own",
        )


def known(typed: Sequence[str]) -> set[str]:
    """All words that are written in the user's configuration files and on the command line."""
    return {value for _, value in given(typed) if isinstance(value, str)}


def given(typed: Sequence[str]) -> Iterator[Leaf]:
    """All values there, those of files by their paths in them."""
    folders = [CONF]
    for override in OverridesParser.create().parse_overrides(list(typed)):
        name = override.key_or_group
        own = list(leaves(None if override.is_sweep_override() else override.value(), name))
        yield from own
        if name == "hydra.searchpath":
            folders += [Path(value.removeprefix("file://")) for _, value in own if str(value).startswith("file://")]
    for folder in folders:
        for file in sorted(folder.rglob("*.yaml")):
            yield from leaves(yaml.safe_load(file.read_text()))


def leaves(node: Any, path: str = "") -> Iterator[Leaf]:
    """Whatever is neither a section nor a list, in both."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if pairs is None:
        yield path, node
        return
    for key, value in pairs:
        yield from leaves(value, f"{path}.{key}" if path else str(key))


def named(node: Any, path: str = "") -> Iterator[Leaf]:
    """Paths and names of what Hydra would call: each ``_target_``, or what Hydra's own functions would find for it."""
    if isinstance(node, dict) and "_target_" in node:
        names = ["path", "_args_"] if FINDS.fullmatch(str(node["_target_"])) else ["_target_"]
        yield from ((f"{path}.{name}" if path else name, str(node[name])) for name in names if name in node)
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from named(value, f"{path}.{key}" if path else str(key))


def plain_overrides(kept: Sequence[str], typed: Sequence[str], source: Path) -> list[str]:
    """The overrides that a checkpoint has, as far as they are a run's: of Hydra's own settings folders of YAML alone.

    Hydra follows references in some of them while it composes, so they are looked at before.

    Raises:
        SettingError: they are none, or call what nobody here does.
    """
    overrides, ours = [], known(typed)
    try:
        parsed = OverridesParser.create().parse_overrides(list(kept))
    except Exception as error:  # of the parser's own, and of what is no list of words
        raise SettingError("ckpt_path", f"{source} has no overrides that can be read", "resume another one") from error
    for override in parsed:
        name = override.key_or_group
        for path, value in leaves(None if override.is_sweep_override() else override.value(), name):
            _check_reference(path, value, ours, "ckpt_path", source)
        if re.split(r"[./@]", name)[0] != "hydra" or (name == "hydra.searchpath" and _of_files(override.value())):
            overrides.append(str(override.input_line))
    return overrides


def _of_files(folders: Any) -> bool:
    return isinstance(folders, list) and all(str(folder).startswith("file://") for folder in folders)


def _called(value: str) -> set[str]:
    """The functions in the references of a value; of one whose name is put together, all of its text."""
    if "${" not in value:
        return set()
    try:
        tree = parse(value)
    except GrammarParseError:
        return set()  # which nobody can follow
    return set(_resolvers(tree))


def _resolvers(tree: Any) -> Iterator[str]:
    if isinstance(tree, OmegaConfGrammarParser.ResolverNameContext):
        yield tree.getText()
    if isinstance(tree, ParserRuleContext):
        for child in tree.getChildren():
            yield from _resolvers(child)
