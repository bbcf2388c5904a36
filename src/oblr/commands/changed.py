"""What a run is told that its script would not do by itself."""

from collections.abc import Iterable
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from rich.table import Table
from rich.text import Text

from oblr.commands.compose import job_config
from oblr.run.resumed import PATHS
from oblr.run.sweeps import flat


def changed(told: Any, script: str) -> dict[str, tuple[Any, Any]]:
    """Setting → its value, and the one that ``conf/<script>.yaml`` has: where they differ.

    A group with another choice counts as one setting. What follows from other settings is none of its own. It reads
    the configuration that Hydra is running.

    Args:
        told: that configuration as a container, with its interpolations.
    """
    composing = GlobalHydra.instance().hydra
    assert composing is not None
    default = composing.compose_config(script, [], RunMode.RUN)
    choices, usual = HydraConfig.get().runtime.choices, default.hydra.runtime.choices
    others = {
        name: (choice, usual.get(name))
        for name, choice in choices.items()
        if choice != usual.get(name) and not name.startswith("hydra/")
    }
    ours, theirs = flat(told), flat(OmegaConf.to_container(job_config(default), resolve=False))
    elsewhere = (*others, *PATHS, "name")
    own = {
        path: (value, theirs.get(path))
        for path, value in ours.items()
        if value != theirs.get(path) and path.partition(".")[0] not in elsewhere
    }
    gone = {first_gone(path, ours): ("removed", None) for path in theirs if path.partition(".")[0] not in elsewhere}
    return others | own | {path: value for path, value in gone.items() if path}


def own_settings(told: Any) -> dict[str, Any]:
    """The choice of every group, and each setting that follows from no other: what runs are told apart by.

    Args:
        told: the configuration that Hydra is running, as a container, with its interpolations.
    """
    choices = {name: choice for name, choice in HydraConfig.get().runtime.choices.items() if "hydra/" not in name}
    return choices | {path: value for path, value in flat(told).items() if "${" not in str(value)}


def first_gone(path: str, ours: Iterable[str]) -> str:
    """The shortest beginning of ``path`` that none of ``ours`` has; "" where they have all of it."""
    parts = path.split(".")
    beginnings = (".".join(parts[: i + 1]) for i in range(len(parts)))
    return next((b for b in beginnings if not any(own == b or own.startswith(f"{b}.") for own in ours)), "")


def changes_table(found: dict[str, tuple[Any, Any]]) -> Table:
    """Name, value and default, a line each."""
    table = Table.grid(padding=(0, 2))
    for i, (name, (value, default)) in enumerate(found.items()):
        usual = "" if default is None else f"instead of {default}"
        table.add_row("" if i else "settings  ", *(Text(str(text)) for text in (name, value, usual)))
    return table
