"""The steps of a run, from what it has left: a file of statistics, or the folder of a run of this program."""

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from oblr.doctor.findings import finite
from oblr.errors import SettingError
from oblr.record.curves import METRICS, read_curves
from oblr.record.rollouts import files_of_steps
from oblr.run.provenance import in_order
from oblr.statistics.log import STATISTICS, Response, StepRecord
from oblr.statistics.log import read as read_log

#: Of a longer run its last steps are read, at most so many, of at most so many compressed bytes of responses.
MOST, ROOM = 100, 16 * 2**20
#: What the log of a run tells of a step.
LOGGED = ("snr/M1", "train/lr", "train/entropy", "monitor/onward")


def ours(place: Path) -> bool:
    """Whether it is the folder of a run of this program."""
    return (place / METRICS).is_file() and not (place / STATISTICS).is_file()


def read(place: Path) -> list[StepRecord]:
    """Its last steps, 100 at most, in their order.

    Args:
        place: a file of :mod:`oblr.statistics.log`, a folder with one, or a run's folder.

    Raises:
        SettingError: there are no steps, or they cannot be read.
    """
    if not place.exists():
        raise SettingError("run", f"{place} is not there", "name a run's folder, or its file statistics.jsonl")
    file = place / STATISTICS if place.is_dir() else place
    if place.is_dir() and ours(place):
        steps = list(_of_run(place))
    elif file.is_file():
        steps = _of_log(file)
    else:
        raise SettingError(
            "run", f"{place} has neither {STATISTICS} nor {METRICS}", "name a run's folder, or its file of statistics"
        )
    steps = [step for step in steps if finite(step.gradient_square)]
    if not steps:
        raise SettingError("run", f"{place} has no step whose gradient is known", "let the run take a step first")
    return steps[-MOST:]


def _of_log(file: Path) -> list[StepRecord]:
    """A last line that is not written whole is left out; so are steps that were taken again further down."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        found = list[StepRecord]()
        for step in read_log(lines[-MOST:]):
            while found and found[-1].step >= step.step:  # a run has gone back, or another has begun
                found.pop()
            found.append(step)
        return found
    except (ValueError, OSError) as error:
        raise SettingError("run", f"{file} is no file of statistics: {error}", "see docs/doctor.md") from error


def _of_run(folder: Path) -> Iterator[StepRecord]:
    """Steps whose responses were kept."""
    try:
        curves, settings = read_curves(folder), _settings(folder)
        at = {tag: dict(zip(*curves.get(tag, ([], [])), strict=True)) for tag in LOGGED}
        for step, files in _last(files_of_steps(folder / "rollouts")):
            if step in at["snr/M1"]:
                rows = [row for path in files for row in _rows(path)]
                yield _step(step, rows, {tag: of.get(step) for tag, of in at.items()}, settings)
    except (ValueError, KeyError, TypeError, EOFError, OSError) as error:
        raise SettingError("run", f"{folder} cannot be read: {error}", "give the folder of an undamaged run") from error


def _last(files: dict[int, list[Path]]) -> list[tuple[int, list[Path]]]:
    """As many of the last steps as there is room for, one at least."""
    room, found = ROOM, list[tuple[int, list[Path]]]()
    for step in sorted(files, reverse=True)[:MOST]:
        room -= sum(path.stat().st_size for path in files[step])
        if room < 0 and found:
            break
        found.append((step, files[step]))
    return found[::-1]


def _rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _step(step: int, rows: list[dict[str, Any]], told: dict[str, float | None], settings: dict[str, Any]) -> StepRecord:
    squares = {row["group"]: row["group_square"] for row in rows}
    lengths = _lengths(rows, len(squares))
    responses = [
        Response(
            group=row["group"],
            gradient_square=None if length is None else length**2,
            square_norm=row["square_norm"],
            reward=row["shaped_reward"],
            advantage=row["advantage"],
            length=row["tokens"],
            finished=row["verdict"] != "truncated",
            log_ratio=math.log(row["ratio"]) if row["ratio"] else None,
            entropy=told["train/entropy"],  # of the step's tokens together: those of responses are not kept
            logprob=row.get("logprob"),
            peak=row.get("peak"),
            peak_share=row.get("peak_share"),
            prompt=row["prompt"],
            text=row["text"],
        )
        for row, length in zip(rows, lengths, strict=True)
    ]
    square = told["snr/M1"]
    return StepRecord(
        step=step,
        gradient_square=math.nan if square is None else square,
        group_squares=[squares[group] for group in sorted(squares)],
        responses=responses,
        learning_rate=told["train/lr"],
        onward=told["monitor/onward"],
        eta0=settings.get("eta0"),
        plain=_plain(settings),
        age=step - rows[0].get("weight_version", step),
    )


def _lengths(rows: list[dict[str, Any]], count: int) -> list[float | None]:
    """``‖g_i‖ = |c_i|·‖∇θ log π‖/N`` with ``c_i = ρ_i A_i/G`` where nothing is clipped, by the shares where it is."""
    size = len(rows) / count
    plain = [
        abs(row["advantage"]) * row["ratio"] * math.sqrt(row["square_norm"]) / (count * size)
        if row["share"] is not None and row["ratio"] is not None and row["square_norm"] is not None
        else None
        for row in rows
    ]
    wholes = [length / row["share"] for row, length in zip(rows, plain, strict=True) if length and row["share"]]
    whole = median(wholes) if wholes else 0.0
    return [row["share"] * whole if row["share"] is not None else None if row["live"] else 0.0 for row in rows]


def _settings(folder: Path) -> dict[str, Any]:
    """The settings in a run's folder, by section: those that it was last told."""
    import yaml

    files = in_order(folder, "config*.yaml")
    return yaml.safe_load(files[-1].read_text()) if files else {}


def _plain(settings: dict[str, Any]) -> bool:
    """Whether the run's optimizer is SGD that is told nothing but a rate."""
    optimizer = settings.get("optimizer") or {}
    told = (value for name, value in optimizer.items() if name not in ("_target_", "_partial_", "lr"))
    return optimizer.get("_target_") == "torch.optim.SGD" and not any(told)
