"""Settings that cannot work, tried as scripts are started, in this process: what is said, and what is left."""

import contextlib
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hydra.types import RunMode
from pydantic_words import wanted

from oblr.commands import sweep
from oblr.commands.compose import composer, job_config
from oblr.commands.launch import launch, one_line_errors
from oblr.settings.check import SECTIONS, settings

#: How each script is started where all is well.
STARTS = {
    "train": ("experiment=pocket", "rollout.engine=hf"),
    "eval": ("model=models/pocket", "benchmarks=[chain_sum]", "rollout.engine=hf"),
    "pretrain": ("experiment=pocket_base",),
    "sweep": ("experiment=pocket", "schedule=constant", "optimizer=sgd,adamw"),
}
#: More of the configuration, whose settings are tried as well.
OPTIONS = {
    "train": (
        *((f"schedule={name}",) for name in ("constant", "linear", "noise", "noise_linear", "snr")),
        *((f"baseline={name}",) for name in ("adaptive", "batch_mean", "opo", "shrinkage", "value")),
        *((f"loss={name}",) for name in ("band", "capo", "cispo", "ess", "gepo", "gspo", "ppo_clip")),
        *(
            ("kl=k3",),
            ("gradnorm=sketch",),
            ("schedule=constant", "optimizer=adamw"),
            ("callbacks=benchmarks",),
            ("trainer=fsdp",),
        ),
        *(("data=gsm8k",), ("data=mixture",), ("reward=sum",), ("reward=math",), ("reward=working",)),
    ),
    "eval": (("benchmarks=[gsm8k]",), ("benchmarks=[minerva,dialogsum]",)),
    "pretrain": (),
    "sweep": (),
}
WORDS = ("abc", "it's", 'a "b" c', "", "-", "1e", "[1", "ä", "x" * 500)
POOL: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, -1, -0.5, 0, 1.5, 10**12, 10**40, -(10**40), 1e300, 2**63),
    *(None, True, False, [], [[]], [1, "a"], [math.nan], {}, {"a": 1}, *WORDS),
)


class Case(NamedTuple):
    """A setting of a script under some overrides, and its kind; None for a section."""

    script: str
    overrides: tuple[str, ...]
    path: str
    kind: Any


def cases(script: str, *overrides: str) -> list[Case]:
    """All settings, and all sections, that a script has under these overrides."""
    start = (*STARTS[script], *overrides)
    name = "train" if script == "sweep" else script
    with composer() as compose:
        cfg = job_config(compose(name, [o for o in start if "sgd,adamw" not in o], RunMode.RUN))
    found = [Case(script, start, path, kind) for path, kind, _ in settings(cfg, name) if not isinstance(kind, SECTIONS)]
    above = {path.rpartition(".")[0] for _, _, path, _ in found} - {""}
    return found + [Case(script, start, path, None) for path in sorted(above)]


def refuses(kind: Any, value: Any) -> bool:
    """Whether the value is none of this kind. Sections are given in their stead what is none."""
    if kind is None:
        return value is not None and not isinstance(value, dict)  # some may be null
    return bool(wanted(kind, value))


def bad_values(case: Case) -> list[Any]:
    return [value for value in POOL if refuses(case.kind, value)]


def typed(value: Any) -> str:
    """As a user types it on the command line."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {typed(part)}" for key, part in value.items()) + "}"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


class Outcome(NamedTuple):
    status: Any
    lines: list[str]
    written: list[str]


def outcome(case: Case, override: str, folder: Path) -> Outcome:
    """Start the script with ``override``; what passes all that is said before torch has the status "accepted"."""
    places = ["export_to"] if case.script == "pretrain" else ["paths.runs", "paths.output_dir"]
    arguments = [*case.overrides, *(f"{place}={folder / 'run'}" for place in places if place != case.path), override]
    before, environment = sys.argv, os.environ.copy()
    sys.argv = [f"src/{case.script}.py", *arguments]
    try:
        with heard() as said:
            if case.script == "sweep":
                with one_line_errors():
                    sweep.compose_tasks(arguments)
                status: Any = "accepted"
            else:
                launch(case.script, "accepted")
    except SystemExit as end:
        status = end.code
    except Exception as error:  # a user would see a traceback
        status = f"{type(error).__name__}: {error}"
    finally:
        sys.argv = before
        os.environ.clear()
        os.environ.update(environment)
    lines = [line for line in said[0].splitlines() if line.strip()]
    return Outcome(status, lines, [str(path) for path in folder.rglob("*")])


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Yields a list that will have what the process says on the terminal."""
    said: list[str] = []
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1), os.dup(2)
        try:
            sys.stdout.flush()
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield said
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            for descriptor in kept:
                os.close(descriptor)
            file.seek(0)
            said.append(file.read().decode())


def is_right(found: Outcome) -> bool:
    """One line, status 2, nothing written."""
    return found.status == 2 and len(found.lines) == 1 and found.lines[0].startswith("error: ") and not found.written


def tries(rng: random.Random) -> Iterator[tuple[Case, str]]:
    """Every bad value of every setting of every script, and names that there are not, in a random order."""
    drawn = []
    for script, options in OPTIONS.items():
        known: dict[str, Case] = {}
        for overrides in ((), *options):
            for case in cases(script, *overrides):
                known.setdefault(case.path, case)
        for case in known.values():
            drawn += [(case, f"{case.path}={typed(value)}") for value in bad_values(case)]
            name = case.path.rpartition(".")[2]
            if case.kind is not None and name:
                drawn.append((case, f"+{case.path}x=1"))
    rng.shuffle(drawn)
    yield from drawn
