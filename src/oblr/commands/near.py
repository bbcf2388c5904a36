"""What was probably meant by a name that no configuration has."""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from oblr.errors import SettingError
from oblr.run.paths import CONF
from oblr.settings.check import leaves

#: How Hydra says that it knows no setting, or no group.
UNKNOWN = re.compile(r"Could not override '([^'@]+)[^']*'|Could not delete from config\. '([^']+)' does not exist")
#: What composes a configuration of its name, overrides and mode.
Compose = Callable[[str, Sequence[str], RunMode], DictConfig]


def unknown(problem: str, script: str, compose: Compose) -> SettingError | None:
    """What to say of Hydra's ``problem``, if that is an unknown name, and which known one is nearest to it.

    Args:
        script: the configuration that was composed, as ``train``.
    """
    if (found := UNKNOWN.match(problem)) is None:
        return None
    name = found[1] or found[2]
    known, groups = names(script, compose)
    if (CONF / name).is_dir() and name not in groups:
        files = (path.relative_to(CONF).with_suffix("") for path in sorted(CONF.glob("*/*.yaml")))
        takers = [f"{file.parent}={file.name}" for file in files if f"/{name}@" in (CONF / f"{file}.yaml").read_text()]
        fix = f"it belongs to {' or '.join(takers)}" if takers else f"there are {', '.join(groups)}"
        return SettingError(name, "this configuration has no such group", fix)
    if near := nearest(name, [*groups, *known]):
        return SettingError(name, "there is no such setting", f"did you mean {near}?")
    place = next(place for place in beginnings(name) if place in known or not place)
    inside = dict.fromkeys(path[len(place) :].lstrip(".").split(".")[0] for path in known if path.startswith(place))
    inside = {part: None for part in inside if not part.startswith("_")}
    return SettingError(name, "there is no such setting", f"{place or script} has {', '.join(filter(None, inside))}")


def names(script: str, compose: Compose) -> tuple[list[str], list[str]]:
    """Paths of all settings and sections, with the options of groups that were asked for; and the groups."""
    asked = [argument for argument in sys.argv[1:] if is_choice(argument)]
    cfg = compose(script, asked, RunMode.RUN)
    groups = [name for name in cfg.hydra.runtime.choices if not name.startswith("hydra/")]
    own = OmegaConf.masked_copy(cfg, [str(name) for name in cfg if name != "hydra"])
    paths = [path for path, _ in leaves(OmegaConf.to_container(own, resolve=False))]
    return list(dict.fromkeys(place for path in paths for place in beginnings(path) if place)), groups


def is_choice(argument: str) -> bool:
    """Whether it chooses an option that there is, of a group that every configuration of the script has."""
    group, _, option = argument.partition("=")
    return (CONF / group / f"{option}.yaml").is_file()


def beginnings(path: str) -> list[str]:
    """``a.b.c``, ``a.b``, ``a`` and nothing."""
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that is spelled most like it; or, of one without its section, what stands at the end of one."""
    every = list(dict.fromkeys(known))
    if near := get_close_matches(name, every, 1, cutoff=0.75):
        return near[0]
    section, _, rest = name.partition(".")
    if rest and (near := get_close_matches(section, [path for path in every if "." not in path], 1, cutoff=0.75)):
        return f"{near[0]}.{rest}" if near[0] != section else None
    ends = {path.rpartition(".")[2]: path for path in reversed(every)}
    near = get_close_matches(name.rpartition(".")[2], ends, 1, cutoff=0.75)
    return ends[near[0]] if near else None
