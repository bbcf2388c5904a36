"""A run that goes on: how its settings differ from those that its checkpoint was made with, and which must not.

What a part of a run remembers means something to that part alone. So the checkpoint keeps the run's configuration
beside it, and one rule holds for all parts: where a part remembers anything, its class is the same, and so is each of
its settings that is no number. Numbers may change: a rate, a number of steps. Parts that remember nothing may be
exchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from oblr.errors import SettingError
from oblr.run.manifest import before, damaged, found, is_complete

#: Where a run lies, and whether it is a resumed one, makes it no other run.
PATHS = ("paths", "ckpt_path")
#: Of a setting that is not there.
ABSENT = "absent"  # told from a word that somebody types by being this very object
#: A setting's path, and its value before and now.
Difference = tuple[str, Any, Any]


def choose_checkpoint(ckpt_path: str, folder: Path, say: Callable[[str], None] = lambda line: None) -> Path | None:
    """The checkpoint to resume from; ``last`` is the newest in the run folder, ``auto`` too, if there is any.

    Args:
        say: told in a line where ``auto`` takes the one before the newest, as that is damaged.

    Raises:
        SettingError: it is missing or damaged; names the one before, where that is whole.
    """
    if ckpt_path in ("last", "auto"):
        there = found(folder / "checkpoints")
        if not there and ckpt_path == "auto":
            return None
        if not there:
            raise SettingError("ckpt_path", f"{folder} has no checkpoint", "name another run with paths.output_dir")
        path = there[-1]
    else:
        path = Path(ckpt_path)
        if not path.exists():
            raise SettingError("ckpt_path", f"there is no {path}", "give a checkpoint, or last")
    if not (names := damaged(path)):
        return path
    earlier = before(path)
    problem = f"{path} is not a complete checkpoint" if not is_complete(path) else f"{path} is damaged"
    problem = f"{problem}: {', '.join(names[:3])}{' …' * (len(names) > 3)}"
    if earlier is None:
        raise SettingError("ckpt_path", f"{problem}, and no earlier one beside it is whole", "begin another run")
    if ckpt_path != "auto":
        raise SettingError("ckpt_path", problem, f"go on from the one before: ckpt_path={earlier}")
    say(f"{problem}; going on from the one before, {earlier}")
    return earlier


def differences(before: Any, now: Any, path: str = "") -> Iterator[Difference]:
    """Where two configurations differ, besides :data:`PATHS`. A section of another class is one difference."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)) or _class(before) != _class(now):
        if _value(before) != _value(now):
            yield path, before, now
        return
    for key in dict.fromkeys([*before, *now]):
        if path or key not in PATHS:
            own = f"{path}.{key}" if path else str(key)
            yield from differences(before.get(key, ABSENT), now.get(key, ABSENT), own)


def at(config: Any, path: str) -> Any:
    """The value of a setting ``a.b.c``; :data:`ABSENT` where there is none."""
    for key in path.split("."):
        config = config.get(key, ABSENT) if isinstance(config, Mapping) else ABSENT
    return config


def shown(value: Any) -> str:
    """A value in a few words: of a section its class."""
    if isinstance(value, Mapping):
        return str(_class(value) or "a section").rpartition(".")[2]
    text = str(value)
    return text if len(text) <= 60 else f"{text[:40]} … {text[-10:]}"


def with_changes(stored: Any, before: Any, now: Any) -> Any:
    """``stored`` with what is another in ``now`` than it was in ``before``.

    Args:
        stored: a configuration, as the code of then has composed it.
        before: the same one, as today's code composes it.
        now: that with further settings.
    """
    if before == now:
        return stored
    sections = all(isinstance(node, Mapping) for node in (stored, before, now))
    if not sections or _class(before) != _class(now) or _class(stored) != _class(now):
        return now
    merged = {}
    for key in dict.fromkeys([*stored, *now]):
        own = [node.get(key, ABSENT) for node in (stored, before, now)]
        # what that version did not have yet is as today's code has it
        value = own[2] if own[0] is ABSENT else with_changes(*own)
        if value is not ABSENT:
            merged[key] = value
    return merged


def completed(stored: Any, now: Any) -> Any:
    """``stored`` with the sections and settings that its version did not have yet."""
    if not (isinstance(stored, Mapping) and isinstance(now, Mapping)) or _class(stored) != _class(now):
        return stored
    own = {key: completed(value, now[key]) if key in now else value for key, value in stored.items()}
    return own | {key: value for key, value in now.items() if key not in own}


def unlike(before: Any, now: Any, path: str, joined: bool = False) -> Difference | None:
    """The first setting of a part that remembers something which has to be the same and is not.

    Args:
        joined: whether parts of it may be new, which then have nothing to remember.
    """

    def may(then: Any, today: Any) -> bool:
        return _numbers(then, today) or (joined and then is ABSENT and isinstance(today, Mapping))

    return next((one for one in differences(before, now, path) if not may(*one[1:])), None)


def _numbers(before: Any, now: Any) -> bool:
    """Whether both are numbers, or as many of them in a list, or none where the other is one."""
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(_numbers, before, now))
    return all(
        value is None or value is ABSENT or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in (before, now)
    )


def _class(section: Mapping[str, Any]) -> str | None:
    return section.get("_target_")


def _value(value: Any) -> Any:
    return isinstance(value, bool), value  # True == 1
