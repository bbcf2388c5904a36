"""What a GPU really does: self-check, norms, updates, the engine and a step measured, predictions beside them.

    python benchmarks/gpu.py [--quick] [--parts selfcheck passes demo norms updates profile engine step run trl watched]

Each part is a process of its own with a limit of time, so that one failure costs one part: its figures up to there
stay, beside the last line of its error, and the command ends with status 1; all that a part has said is in
``.cache/gpu/PART.log``. What a part needs and is not installed is said, too. What is measured is kept in
``.cache/gpu/gpu.jsonl`` as each part ends, and not measured again on the same device, with the same code and
versions: a command that was cut short is simply given again. The result has the newest figures of each part.

``--quick``: tiny shapes on the CPU, of what needs no engine unless ``--parts`` names more. Two policies of 4B are
written to ``.cache/gpu``, 8 GB each, and stay for a next call.
"""

import argparse
import faulthandler
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch
from figures import ROOT, Estimate, Figure, parser, write

from oblr.run.provenance import revision, versions

RESULTS = ROOT / "benchmarks" / "results"
LOGS = ROOT / ".cache" / "gpu"


@dataclass(frozen=True)
class OfPart(Figure):
    """A figure and the part that it is of."""

    part: str = ""


@dataclass(frozen=True)
class EstimateOfPart(OfPart, Estimate):
    """One with its interval."""


@dataclass(frozen=True)
class Part:
    """``measure(quick, *arguments)`` of a module yields figures, and notes as text.

    Attributes:
        limit: seconds; what a failure costs at most.
    """

    module: str
    limit: int
    arguments: tuple[str, ...] = ()


#: Most seconds of a part; and of one with an engine, whose first start compiles for longer than that.
LIMIT, COLD = 120, 300
#: In the order of a first hour on a GPU: whether a run would start, in how many passes it would go, whether it learns;
#: then what is right, fast and large.
PARTS = {
    "selfcheck-4B": Part("gpu_selfcheck", LIMIT, ("4B",)),
    "selfcheck-pocket": Part("gpu_selfcheck", 60, ("pocket",)),
    "passes": Part("gpu_passes", LIMIT),
    "demo": Part("gpu_run", COLD, ("demo",)),
    "norms": Part("gpu_norms", 90),
    "updates-4B-512": Part("gpu_updates", LIMIT, ("4B", "512")),
    "updates-4B-2048": Part("gpu_updates", LIMIT, ("4B", "2048")),
    "updates-4B-2048-checkpointing": Part("gpu_updates", LIMIT, ("4B", "2048", "checkpointing")),
    "updates-8B-2048": Part("gpu_updates", LIMIT, ("8B", "2048")),
    "updates-8B-512": Part("gpu_updates", LIMIT, ("8B", "512")),
    "profile-512": Part("gpu_profile", LIMIT, ("512",)),
    "profile-2048": Part("gpu_profile", LIMIT, ("2048",)),
    "engine-pocket": Part("gpu_engine", COLD, ("pocket", "CUDA graphs")),
    "engine-4B-eager": Part("gpu_engine", COLD, ("4B", "eager")),  # writes the 4B down
    "engine-4B": Part("gpu_engine", COLD, ("4B", "CUDA graphs")),
    "step": Part("gpu_step", COLD),
    "run": Part("gpu_run", COLD, ("4B",)),  # writes a policy of 8 GB down, too
    "trl": Part("gpu_trl", COLD),
    "watched": Part("watched", LIMIT),
}
#: Quick forms, and those that need no engine; of the others one would show what these do.
ALONE = ("selfcheck-4B", "selfcheck-pocket", "passes", "norms", "updates-4B-512", "profile-512")
QUICK = (*ALONE, "engine-pocket", "demo", "step", "run", "trl", "watched")


def chosen(wanted: list[str] | None, quick: bool) -> list[str]:
    """The parts of these names, in their order; ``updates`` means all of them."""
    known = [name for name in PARTS if name in QUICK or not quick]
    if wanted is None:
        return [name for name in known if name in ALONE or not quick]
    unknown = [one for one in wanted if not any(_belongs(name, one) for name in known)]
    if unknown:
        raise SystemExit(f"gpu.py: no part {unknown[0]!r}: choose of {', '.join(known)}")
    return [name for name in known if any(_belongs(name, one) for one in wanted)]


def _belongs(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}-")


def identity(quick: bool) -> dict[str, Any]:
    """What a figure holds for. A revision with changes says not which: the code itself is digested."""
    code = hashlib.sha256()
    for folder in ("src", "benchmarks", "callbacks"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            code.update(file.read_bytes())
    device = "CPU" if quick else torch.cuda.get_device_name()
    return {"device": device, "quick": quick, "code": code.hexdigest()[:16], "versions": versions()}


def measured(journal: Path, same: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The newest row of each part in the journal that was measured whole under ``same``."""
    if not journal.exists():
        return {}
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    found = {row["part"]: row for row in rows if same.items() <= row.items()}
    return {name: row for name, row in found.items() if not row["error"] and not row["missing"]}


def earlier(result: Path) -> list[dict[str, Any]]:
    """The rows that a result was made of."""
    if not result.exists():
        return []
    found = json.loads(result.read_text())
    parts = {row["part"]: {**row, "device": found["device"], "figures": []} for row in found["parts"]}
    for figure in found["figures"]:
        parts[figure["part"]]["figures"].append(figure)
    return list(parts.values())


def newest(result: Path, journal: Path, device: str) -> list[dict[str, Any]]:
    """Of each part the newest row of this device with figures, whatever code it was measured with."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    rows = [*earlier(result), *map(json.loads, lines)]
    found = {row["part"]: row for row in rows if row["device"] == device and row["figures"]}
    return [found[name] for name in PARTS if name in found]


def put_together(result: Path, journal: Path, device: str) -> None:
    """The table and the result, of all parts that have been measured on this device."""
    rows = newest(result, journal, device)
    figures = [
        (EstimateOfPart if "low" in figure else OfPart)(**figure | {"part": row["part"]})
        for row in rows
        for figure in row["figures"]
    ]
    kept = ("part", "seconds", "notes", "missing", "error", "revision", "versions")
    write(result.stem, figures, device=device, parts=[{key: row[key] for key in kept} for row in rows])


def run(name: str, part: Part, quick: bool) -> dict[str, Any]:
    """One part in a process of its own; its row."""
    start, found = time.perf_counter(), {"figures": [], "notes": [], "missing": ""}
    log = LOGS / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        lines = Path(temporary) / "lines"
        command = [sys.executable, __file__, "--part", name, "--into", str(lines), *["--quick"] * quick]
        with log.open("w") as output:
            environment = os.environ | ({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if quick else {})
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            status = process.wait(part.limit)
            error = "" if status == 0 else last_line(log) or f"ended with status {status}"
        except subprocess.TimeoutExpired:
            error = f"took longer than {part.limit} s; last it said: {last_line(log)}"
        finally:
            if process.poll() is None:  # with what it has started
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for line in lines.read_text().splitlines() if lines.exists() else []:
            for kind, value in json.loads(line).items():
                if kind == "missing":
                    found[kind] = value
                else:
                    found[kind].append(value)
    return {"part": name, "seconds": time.perf_counter() - start, "error": error, **found}


def last_line(log: Path) -> str:
    """The last that begins with an error's name, or the last."""
    said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in said if re.match(r"[\w.]*(Error|Exit|Interrupt|Exception)\b", line)]
    return (errors or said or [""])[-1][:500]


def alone(name: str, into: Path, quick: bool) -> NoReturn:
    """A part in this process, which ends with it: engines and collectives take long to take down, and may hang."""
    faulthandler.dump_traceback_later(PARTS[name].limit - 5)
    status = 1
    try:
        measure(name, into, quick)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def measure(name: str, into: Path, quick: bool) -> None:
    """The part itself; writes what it finds as it finds it."""
    with into.open("w", buffering=1) as lines:
        try:
            for one in _yielded(PARTS[name], quick):
                found = {"notes": one} if isinstance(one, str) else {"figures": asdict(one)}
                lines.write(json.dumps(found) + "\n")
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if not package or any((ROOT / folder / package).with_suffix(end).exists() for folder, end in OWN):
                raise
            lines.write(json.dumps({"missing": package}) + "\n")


#: Where modules of the project lie, whose absence is an error.
OWN = (("src", ""), ("src", ".py"), ("benchmarks", ".py"), (".", ""))


def _yielded(part: Part, quick: bool) -> Iterator[Figure | str]:
    yield from import_module(part.module).measure(quick, *part.arguments)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+")
    options.add_argument(
        "--put-together", metavar="DEVICE", help="measure nothing; write the result from what is kept of it"
    )
    options.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.part:
        alone(args.part, args.into, args.quick)
    if args.put_together:
        return put_together(RESULTS / "gpu.json", LOGS / "gpu.jsonl", args.put_together)
    if not args.quick and not torch.cuda.is_available():
        raise SystemExit("gpu.py: there is no CUDA device here; --quick runs the same code on the CPU")
    names, same = chosen(args.parts, args.quick), identity(args.quick)
    name = f"gpu{'-quick' * args.quick}"
    result, journal = RESULTS / f"{name}.json", LOGS / f"{name}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    for path in (result, journal) if args.quick else ():
        path.unlink(missing_ok=True)
    known = measured(journal, same)
    failed = {}
    for name in names:
        if name in known:
            print(f"{name}: measured before", flush=True)
            continue
        row = {**run(name, PARTS[name], args.quick), **same, "revision": revision(ROOT)}
        with journal.open("a") as rows:
            rows.write(json.dumps(row, ensure_ascii=False) + "\n")
        if row["error"]:
            failed[name] = row["error"]
        missing = f"{row['missing']} is not installed" if row["missing"] else ""
        print(f"{name}: {row['seconds']:.0f} s", *filter(None, (missing, row["error"])), sep="; ", flush=True)
    put_together(result, journal, same["device"])
    if failed:
        raise SystemExit("\n".join(f"gpu.py: {name} failed: {error}" for name, error in failed.items()))


if __name__ == "__main__":
    main()
