"""What does a run survive? Kills at random moments of its steps, full disks, damaged checkpoints, ranks that die.

    python benchmarks/faults.py [--quick]

Everything happens to ``src/train.py experiment=pocket`` with AdamW and, where the engine is not what is struck, with
transformers' generation, and is held against the same run left alone.

- Kills: a chain of them over one run, each by SIGKILL and at a random moment of a random step's rollout, norm pass,
  update or checkpoint; each time the run is resumed, or begun anew where no checkpoint was complete. All checkpoints on
  the way, the exported policy and the curves must be those of the uninterrupted run, bit for bit. Of two ranks one is
  killed, and none may be left 60 s later.
- Engines: a worker of the run's own vLLM server, or the server itself, is killed at a random moment of a rollout. The
  run must go on by itself and end with the same bits.
- Faults: a run is resumed half-way and meets a fault. It must end with one line on the terminal that has the cause and
  leave the earlier checkpoints as they were; resumed once more, without the fault, it must end with the same bits.

What is done is kept in ``.cache/faults.jsonl``; a second call goes on where the first was stopped.
``--quick``: one kill, and nothing is kept.
"""

import hashlib
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from figures import ROOT, Figure, asked_to_be_quick, at_least, at_most, write
from strikes import PHASES

from oblr.record.curves import read_curves
from oblr.run.lock import LOCK
from oblr.run.manifest import by_age
from oblr.run.provenance import revision

COMMON = (
    *("experiment=pocket", "rollout.engine=hf", "rollout.prompts_per_step=4", "data.held_out.size=8"),
    *("optimizer=adamw", "schedule=snr", "eta0=1e-3", "callbacks.checkpoints.keep=2"),
    "rollout.sync_timeout=10",
)
BOUND = 60  # s until all ranks have ended
PAGE = 4096  # bytes, of which a file takes whole ones


@dataclass(frozen=True)
class Setup:
    """A run, and how often it is killed."""

    name: str
    overrides: tuple[str, ...] = ()
    ranks: int = 1
    steps: int = 12
    every: int = 2
    kills: int = 30
    chain: int = 5

    @property
    def command(self) -> list[str]:
        several = [f"trainer.devices={self.ranks}", "trainer.accelerator=cpu"] if self.ranks > 1 else []
        return [*COMMON, f"callbacks.checkpoints.every={self.every}", *self.overrides, *several]


ONE = Setup("one process")
TWO = tuple(
    Setup(f"two ranks, {name}", (f"trainer={name}",), ranks=2, steps=8, kills=4, chain=4) for name in ("fsdp", "ddp")
)
SERVER = Setup("vLLM server", ("rollout.engine=server",), steps=4, kills=6)
SERVER_PROCESSES = ("VLLM::Worker", "api_server")
QUICK = Setup("one process", steps=3, every=1, kills=1, chain=1)


@dataclass(frozen=True)
class Ended:
    """How a run has ended.

    Attributes:
        seconds: from what struck it until no process was left; None where nothing did.
    """

    status: int
    screen: str
    errors: list[str]
    seconds: float | None


def train(folder: Path, *overrides: str, strike: str = "", inside: str = "") -> Ended:
    """``python src/train.py``; ``strike`` is a callback of :mod:`strikes`, ``inside`` a shell command around "$@"."""
    journal = folder.with_suffix(".journal")
    journal.unlink(missing_ok=True)
    command = [sys.executable, "src/train.py", f"paths.output_dir={folder}", *overrides]
    if not strike and any(override.startswith("ckpt_path=") for override in overrides):
        command.append("~callbacks.strike")  # a run that goes on takes its own settings
    if strike:
        command.append(f"+callbacks.strike={{_target_: strikes.{strike}, journal: {journal}}}")
    if inside:
        command = ["unshare", "-rm", "sh", "-c", inside, "sh", *command]
    path = os.pathsep.join(filter(None, (str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    screen, errors = process.communicate(timeout=600)
    while any_left(process.pid):
        time.sleep(0.1)
    seconds = time.time() - journal.stat().st_mtime if journal.exists() else None
    return Ended(process.returncode, screen, errors.splitlines(), seconds)


def one_line(ended: Ended, words: str) -> bool:
    """Whether a run has failed with one line on the terminal that has these words, and names a page."""
    lines = [line for line in ended.errors if re.fullmatch(r"error: .*; see docs/\w+\.md", line) and words in line]
    return ended.status > 0 and len(lines) == len(ended.errors) == 1


def any_left(session: int) -> bool:
    """Whether a process of a session lives."""
    found = subprocess.run(["ps", "-o", "stat=", "-g", str(session)], capture_output=True, text=True).stdout.split()
    return any(not state.startswith("Z") for state in found)


def digests(checkpoint: Path) -> dict[str, str]:
    """Of the tensors in a checkpoint: how they are spread over the files is the ranks' affair."""
    entries = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()}
    dcp.load(tensors, checkpoint_id=checkpoint, no_dist=True)
    return {name: hashlib.sha256(tensor.numpy()).hexdigest() for name, tensor in tensors.items()}


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("step-"))


def curves(folder: Path) -> str:
    """All that a run has logged, but for what its machine was doing."""
    found = read_curves(folder).items()
    return json.dumps({tag: curve for tag, curve in found if not tag.startswith(("time/", "throughput/"))})


class Reference:
    """A run that nothing happens to, with all its checkpoints."""

    def __init__(self, setup: Setup, folder: Path):
        self.setup, self.folder = setup, folder
        keep = f"callbacks.checkpoints.keep={setup.steps}"
        ended = train(folder, *setup.command, f"steps={setup.steps}", keep, strike="Phases")
        assert ended.status == 0, ended
        seconds = json.loads(folder.with_suffix(".journal").read_text())
        self.seconds = {phase: statistics.median(spent) for phase, spent in seconds.items()}
        self.step = statistics.median(read_curves(folder)["time/step"][1])
        self.digests = {path.name: digests(path) for path in by_age(folder / "checkpoints")}

    def has(self, folder: Path) -> bool:
        """Whether the complete checkpoints in another run folder are this run's, bit for bit."""
        return all(digests(path) == self.digests[path.name] for path in by_age(folder / "checkpoints"))

    def exported(self, folder: Path) -> bool:
        """Whether another run folder has this run's policy, bit for bit."""
        policies = [path / "policy" / "model.safetensors" for path in (folder, self.folder)]
        return policies[0].read_bytes() == policies[1].read_bytes()

    def until(self, step: int, folder: Path) -> Path:
        """A run folder that was left after ``step``, with two checkpoints."""
        shutil.copytree(self.folder, folder)
        for path in by_age(folder / "checkpoints"):
            if not step - self.setup.every <= step_of(path) <= step:
                shutil.rmtree(path)
        return folder


# --- kills ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killed:
    """One kill: the phase and step it came in, the checkpoint that was whole, what lay half-written beside it."""

    rank: int
    phase: str
    step: int
    saved: int
    half_written: list[str]
    seconds: float | None
    clear: bool


@dataclass
class Chain:
    """Kills of one run, and whether its checkpoints, policy and curves are those of the uninterrupted one.

    ``newest``: it always went on from the checkpoint of its latest step, and none of a later step was ever lost.
    """

    kills: list[Killed] = field(default_factory=list)
    newest: bool = True
    checkpoints: bool = True
    policy: bool = False
    curves: bool = False

    @property
    def same(self) -> bool:
        return self.checkpoints and self.policy and self.curves and self.newest


def kill_chain(
    reference: Reference, folder: Path, seed: int, between: Callable[[Path], None] = lambda folder: None
) -> Chain:
    """Kill a run and go on with it, again and again, and compare what becomes of it.

    Args:
        between: done to the run's folder before it goes on.
    """
    setup, rng, chain = reference.setup, random.Random(seed), Chain()

    def go_on(strike: str = "") -> Ended:
        saved = sorted(by_age(folder / "checkpoints"), key=step_of)
        resume = ["ckpt_path=last"] if saved else []
        if resume:
            between(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        ended = train(folder, *setup.command, f"steps={setup.steps}", *resume, strike=strike)
        if saved:
            there = [step_of(path) for path in by_age(folder / "checkpoints")]
            chain.newest &= f"resuming    {saved[-1]}\n" in ended.screen and max(there) >= step_of(saved[-1])
        return ended

    saved = 0
    for k in range(setup.chain):
        phase, rank = PHASES[(seed + k) % len(PHASES)], k % setup.ranks
        step = min(saved + rng.randint(1, 2 * setup.every), setup.steps)
        delay = rng.random() * reference.seconds[phase]
        ended = go_on(f"Kill, phase: {phase}, step: {step}, rank: {rank}, seconds: {delay:.4f}")
        if ended.status == 0:  # no such phase was left
            break
        saved = max(map(step_of, by_age(folder / "checkpoints")), default=0)
        chain.kills.append(
            Killed(
                rank,
                **json.loads(folder.with_suffix(".journal").read_text()),
                saved=saved,
                half_written=sorted(path.name for path in folder.glob("checkpoints/*.part/*")),
                seconds=ended.seconds,
                # who kills the first rank has killed what would tell
                clear=one_line(ended, f"rank {rank} was killed by SIGKILL") if rank else ended.errors == [],
            )
        )
        chain.checkpoints &= reference.has(folder)
    else:
        ended = go_on()
    assert ended.status == 0, ended
    chain.checkpoints &= reference.has(folder)
    chain.policy, chain.curves = reference.exported(folder), curves(folder) == curves(reference.folder)
    return chain


def kill_figures(setup: Setup, chains: list[Chain]) -> Iterator[Figure]:
    kills = [kill for chain in chains for kill in chain.kills]
    for phase, count in Counter(kill.phase for kill in kills).items():
        yield Figure(f"{setup.name}: killed during {phase}", count, "kills")
    torn = sum(bool(kill.half_written) for kill in kills)
    yield Figure(f"{setup.name}: with a half-written checkpoint beside the whole ones", torn, "kills")
    survived = sum(len(chain.kills) for chain in chains if chain.same)
    yield at_least(f"{setup.name}: survived, the same bits in the end", survived, f"of {len(kills)} kills", len(kills))
    if setup.ranks > 1:
        slowest = max(kill.seconds or 0 for kill in kills)
        yield at_most(f"{setup.name}: one rank killed, until none was left", slowest, "s", BOUND)
        told = sum(kill.clear for kill in kills)
        yield at_least(f"{setup.name}: one line with the cause, or killed itself", told, "kills", len(kills))


# --- engines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Revived:
    """What became of a run whose engine was killed in ``step``: it said so, it ended with the same bits."""

    process: str
    step: int
    told: bool
    same: bool


def revive(reference: Reference, folder: Path, process: str, seed: int) -> Revived:
    """Kill a process of the vLLM server during a rollout."""
    rng, setup = random.Random(seed), reference.setup
    step, delay = rng.randint(1, setup.steps), rng.random() * reference.seconds["rollout"]
    strike = f"KillServer, phase: rollout, step: {step}, seconds: {delay:.4f}, process: '{process}'"
    ended = train(folder, *setup.command, f"steps={setup.steps}", strike=strike)
    struck = json.loads(folder.with_suffix(".journal").read_text())["step"]
    same = ended.status == 0 and reference.has(folder) and reference.exported(folder)
    same = same and curves(folder) == curves(reference.folder)
    return Revived(process, struck, f"step {struck} is repeated: the rollout engine died" in ended.screen, same)


# --- faults -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What a run meets that has been resumed half-way.

    Attributes:
        words: what the one line on the terminal has.
        strike: a callback of :mod:`strikes`, in the first step.
        room: KiB that are left on the disk.
        inside: a shell command around the run, ``"$@"``, in a mount namespace of its own.
        damage: done to the newest checkpoint before.
        resume, mended: ``ckpt_path`` of this run, and of the one after it, without the fault.
        finished: resumed after the last step, where the policy is yet to be exported.
    """

    name: str
    words: str
    strike: str = ""
    room: int | None = None
    inside: str = ""
    damage: Callable[[Path], None] | None = None
    resume: str = "last"
    mended: str = "last"
    finished: bool = False
    ranks: int = 1


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / "__0_0.distcp", 100_000)


def flip(checkpoint: Path) -> None:
    """One bit."""
    path = checkpoint / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


READ_ONLY = "mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
FILL = "head -c 1G /dev/zero > {folder}/ballast; true"
NO_ROOM = "No space left on device"
FAULTS = (
    *(Fault(f"full disk, {room} KiB left", NO_ROOM, room=room) for room in (0, 4, 8, 16, 32, 64)),
    Fault("full disk at the end, 1024 KiB left", NO_ROOM, room=1024, finished=True),
    Fault("disk fills up during rollouts", NO_ROOM, f"Command, phase: rollout, command: '{FILL}'", 40_000),
    Fault("disk fills up during the update", NO_ROOM, f"Command, phase: update, command: '{FILL}'", 40_000),
    Fault("folder cannot be written to", "paths.output_dir: ", inside=f'{READ_ONLY} && "$@"'),
    Fault(
        "folder becomes read-only",
        *("Read-only file system", f"Command, phase: rollout, command: '{READ_ONLY}'"),
        inside='"$@"',
    ),
    Fault("truncated checkpoint", "is not a complete checkpoint", damage=truncate, resume="{newest}"),
    Fault("one bit of a checkpoint changed", "is damaged: __0_0.distcp", damage=flip, mended="{previous}"),
    Fault("corrupted weights in the engine", "the rollout engine is stale", "Corrupt, phase: rollout"),
    Fault("corrupted weights in one engine of two", "the rollout engine is stale", "Corrupt, phase: rollout", ranks=2),
    Fault("sync that hangs", "rollout.sync_timeout: step ", "Hang, phase: update"),
    Fault("full disk, two ranks", NO_ROOM, room=64, ranks=2),
    *(
        Fault(
            f"rank 1 fails in the {phase}",
            *("rank 1 ended with status 1: ", f"Command, phase: {phase}, command: exit 3, rank: 1"),
            ranks=2,
        )
        for phase in ("rollout", "update")
    ),
)


@dataclass(frozen=True)
class Met:
    """How a run met a fault.

    Attributes:
        line: on the terminal.
        clear: it is the only one, and has the cause.
        intact: the earlier checkpoints are as they were, and nothing lies beside them.
        same: the run after it has ended with the uninterrupted one's bits.
    """

    line: str
    clear: bool
    intact: bool
    same: bool
    seconds: float | None

    @property
    def well(self) -> bool:
        return self.clear and self.intact and self.same and (self.seconds or 0) <= BOUND


def contents(folder: Path) -> dict[Path, bytes]:
    """But for who works there."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder): path.read_bytes() for path in files}


def face(fault: Fault, setup: Setup, folder: Path) -> tuple[Ended, bool]:
    """Go on with a run of two checkpoints and meet the fault; also whether the checkpoints are as they were."""
    previous, newest = by_age(folder / "checkpoints")
    step = step_of(newest) + 1
    if fault.damage:
        fault.damage(newest)
    before = contents(folder / "checkpoints")
    names = {"folder": folder, "newest": newest, "previous": previous}
    ended = train(
        folder,
        *setup.command,
        f"steps={min(step_of(newest) + setup.every, setup.steps)}",
        f"ckpt_path={fault.resume.format(**names)}",
        strike=f"{fault.strike.format(**names)}, step: {step}" if fault.strike else "",
        inside=fault.inside.format(**names) if fault.room is None else on_small_disk(folder, fault.room),
    )
    if fault.room is not None:
        shutil.rmtree(folder)
        shutil.rmtree(folder.with_suffix(".was"))
        folder.with_suffix(".left").rename(folder)
        (folder / "ballast").unlink(missing_ok=True)
    return ended, contents(folder / "checkpoints") == before


def meet(fault: Fault, reference: Reference, folder: Path) -> Met:
    """Go on with half of the reference's run, meet the fault, and go on once more without it."""
    setup = reference.setup
    start = setup.steps if fault.finished else 2 * setup.every
    end = min(start + setup.every, setup.steps)
    reference.until(start, folder)
    if fault.finished:
        shutil.rmtree(folder / "policy")
    previous, _ = by_age(folder / "checkpoints")
    ended, intact = face(fault, setup, folder)
    mended = train(folder, *setup.command, f"steps={end}", f"ckpt_path={fault.mended.format(previous=previous)}")
    same = mended.status == 0 and step_of(by_age(folder / "checkpoints")[-1]) == end and reference.has(folder)
    if fault.finished:
        same = same and reference.exported(folder)
    line = "\n".join(ended.errors).replace(str(folder), "run")
    return Met(line, one_line(ended, fault.words), intact, same, ended.seconds)


def on_small_disk(folder: Path, room: int) -> str:
    """A shell command that runs ``"$@"`` with ``folder`` on a disk of its own, and keeps what is on it in ``.left``."""
    was, left = folder.with_suffix(".was"), folder.with_suffix(".left")
    folder.rename(was)
    folder.mkdir()
    left.mkdir()
    pages = sum(math.ceil(path.stat().st_size / PAGE) for path in was.rglob("*") if path.is_file())
    return (
        f"mount -t tmpfs -o size={pages * PAGE + room * 1024} tmpfs {folder} && cp -a {was}/. {folder} && "
        f'"$@"; status=$?; cp -a {folder}/. {left}; exit $status'
    )


# --- all of it --------------------------------------------------------------------------------------------------------


class Trials:
    """What has been tried, kept in a file; made where it is missing."""

    def __init__(self, path: Path | None):
        self.path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.kept = {trial["name"]: trial["result"] for trial in map(json.loads, lines)}

    def __call__(self, name: str, make: Callable[[], Any]) -> dict[str, Any]:
        if name not in self.kept:
            self.kept[name] = asdict(make())
            if self.path:
                with self.path.open("a") as file:
                    trial = {"name": name, "revision": revision(ROOT), "result": self.kept[name]}
                    file.write(json.dumps(trial, ensure_ascii=False) + "\n")
            print(f"{name}: {self.kept[name]}", flush=True)
        return self.kept[name]


def figures(
    setups: tuple[Setup, ...], servers: tuple[Setup, ...], faults: tuple[Fault, ...], trials: Trials, scratch: Path
) -> Iterator[Figure]:
    @cache
    def reference(setup: Setup) -> Reference:
        return Reference(setup, scratch / f"reference-{(*setups, *servers).index(setup)}")

    for setup in setups:
        chains: list[Chain] = []
        while sum(len(chain.kills) for chain in chains) < setup.kills:
            seed = len(chains)
            folder = scratch / "chain"
            result = trials(f"{setup.name}, chain {seed}", lambda: kill_chain(reference(setup), folder, seed))  # noqa: B023
            chains.append(Chain(**result | {"kills": [Killed(**kill) for kill in result["kills"]]}))
            shutil.rmtree(folder, ignore_errors=True)
        yield from kill_figures(setup, chains)
    for setup in servers:
        revived = []
        for seed in range(setup.kills):
            process, folder = SERVER_PROCESSES[seed % len(SERVER_PROCESSES)], scratch / "revived"
            name = f"{setup.name}, kill {seed}"
            result = trials(name, lambda: revive(reference(setup), folder, process, seed))  # noqa: B023
            revived.append(Revived(**result))
            shutil.rmtree(folder, ignore_errors=True)
        for process in SERVER_PROCESSES:
            kills = [kill for kill in revived if kill.process == process]
            survived = sum(kill.told and kill.same for kill in kills)
            name = f"{setup.name}: {process} killed during a rollout, told, the same bits in the end"
            yield at_least(name, survived, f"of {len(kills)} kills", len(kills))
    for fault in faults:
        setup = next(setup for setup in setups if setup.ranks == fault.ranks)
        folder = scratch / "fault"
        met = Met(**trials(fault.name, lambda: meet(fault, reference(setup), folder)))  # noqa: B023
        for path in scratch.glob("fault*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield at_least(f"{fault.name}: one line, state intact, same bits after", met.well, "of 1", 1)


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    trials = Trials(None if quick else ROOT / ".cache" / "faults.jsonl")
    setups, servers, faults = ((QUICK,), (), ()) if quick else ((ONE, *TWO), (SERVER,), FAULTS)
    with tempfile.TemporaryDirectory() as scratch:
        measured = list(figures(setups, servers, faults, trials, Path(scratch)))
    write("faults-quick" if quick else "faults", measured)


if __name__ == "__main__":
    main()
