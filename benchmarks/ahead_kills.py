"""Does a run whose rollouts are ahead train on every problem once, whatever is killed meanwhile?

    python benchmarks/ahead_kills.py [--quick]

Twenty runs of six steps with ``rollout.ahead=2``, each of which loses a process to SIGKILL at a random moment of a
random step: the trainer, a process that scores, the worker of the run's own vLLM server, or the server. A trainer that
was killed is resumed by ``ckpt_path=last``; the rest the run has to start again by itself. Rollouts under way may then
be sampled again, by newer weights, so bits may differ. But each step must train on the problems of its own, in their
order, which are those of a run that nothing happened to, with rollouts at most two steps old.

What is done is kept in ``.cache/ahead_kills.jsonl``; a second call goes on where the first was stopped.
``--quick``: one kill, of a process that scores, and nothing is kept.
"""

import gzip
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from faults import SERVER_PROCESSES, Reference, Setup, Trials, train
from figures import ROOT, Figure, asked_to_be_quick, at_least, write

from oblr.record.curves import read_curves
from oblr.record.rollouts import files_of_steps
from oblr.run.manifest import by_age

AHEAD = ("rollout.engine=server", "rollout.ahead=2")
LONG = Setup("ahead", AHEAD, steps=6, every=1, kills=20)
QUICK = Setup("ahead", AHEAD, steps=3, every=1, kills=1)
VICTIMS = ("reward process", "trainer", *SERVER_PROCESSES)


@dataclass(frozen=True)
class Struck:
    """What became of a run of which a process was killed in ``step``.

    Attributes:
        once: each step has trained on the problems that are its own.
        same: the policy is that of the run that nothing happened to, bit for bit.
    """

    process: str
    step: int
    once: bool
    same: bool


def strike(reference: Reference, folder: Path, seed: int) -> Struck:
    """Kill a process, and go on where the run does not by itself."""
    rng, setup = random.Random(seed), reference.setup
    process, command = VICTIMS[seed % len(VICTIMS)], (*setup.command, f"steps={setup.steps}")
    step, delay = rng.randint(1, setup.steps - 1), rng.random() * reference.step
    how = f"KillMeanwhile, step: {step}, seconds: {delay:.4f}, process: '{process}'"
    ended = train(folder, *command, strike=how)
    whole = folder.with_suffix(".journal").exists()
    if whole and process == "trainer":
        resume = ["ckpt_path=last"] if by_age(folder / "checkpoints") else []
        if not resume:
            shutil.rmtree(folder)
        ended = train(folder, *command, *resume)
    whole = whole and ended.status == 0
    steps, ages = read_curves(folder).get("rollout/age", ([], []))
    once = whole and steps == [*range(1, setup.steps + 1)] and max(ages) <= 2
    once = once and problems(folder) == problems(reference.folder)
    return Struck(process, step, once, whole and reference.exported(folder))


def problems(folder: Path) -> dict[int, list[str]]:
    """Those of each step, in its order."""
    found: dict[int, list[str]] = {}
    for step, files in files_of_steps(folder / "rollouts").items():
        rows = [json.loads(line) for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]
        found[step] = list(dict.fromkeys(row["problem"] for row in rows))
    return found


def figures(setup: Setup, trials: Trials, scratch: Path) -> Iterator[Figure]:
    @cache
    def reference() -> Reference:
        return Reference(setup, scratch / "reference")

    struck = []
    for seed in range(setup.kills):
        result = trials(f"kill {seed}", lambda: strike(reference(), scratch / "struck", seed))  # noqa: B023
        struck.append(Struck(**result))
        shutil.rmtree(scratch / "struck", ignore_errors=True)
    for process in dict.fromkeys(kill.process for kill in struck):
        kills = [kill for kill in struck if kill.process == process]
        unit = f"of {len(kills)} kills"
        yield at_least(f"{process}: each problem trained on once", sum(k.once for k in kills), unit, len(kills))
        yield Figure(f"{process}: the same bits in the end", sum(k.same for k in kills), unit)


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    trials = Trials(None if quick else ROOT / ".cache" / "ahead_kills.jsonl")
    with tempfile.TemporaryDirectory() as scratch:
        measured = list(figures(QUICK if quick else LONG, trials, Path(scratch)))
    write("ahead_kills-quick" if quick else "ahead_kills", measured)


if __name__ == "__main__":
    main()
