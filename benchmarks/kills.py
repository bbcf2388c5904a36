"""What is lost where processes of a run are killed and the clock is set back between?

    python benchmarks/kills.py [--quick]

Thirty kills by SIGKILL, each at a moment that a seeded generator has drawn: of the trainer in its rollouts, norm
passes, updates and while it writes a checkpoint; of the processes that score; of the worker of the run's own vLLM
server, and of the server. With each of them the clock is set back an hour: all files of the run are dated an hour later
than they were, which to whoever asks for times is the same. A trainer that was killed is resumed by ``ckpt_path=last``;
what else was killed the run starts again by itself.

All checkpoints on the way, the exported policy and the curves must be those of the run that nothing happened to, bit
for bit; each resumption must go on from the checkpoint of the latest step, and none may be lost.

What is done is kept in ``.cache/kills.jsonl``; a second call goes on where the first was stopped.
``--quick``: one kill of the trainer, and nothing is kept.
"""

import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from faults import (
    QUICK,
    SERVER_PROCESSES,
    Chain,
    Killed,
    Reference,
    Setup,
    Trials,
    curves,
    kill_chain,
    step_of,
    train,
)
from figures import ROOT, Figure, asked_to_be_quick, at_least, write
from strikes import set_back

from oblr.run.manifest import by_age

TRAINER = Setup("trainer", steps=10, every=1, kills=16, chain=4)
REWARDS = Setup("reward process", steps=4, every=1, kills=6)
SERVER = Setup("vLLM server", ("rollout.engine=server",), steps=4, every=1, kills=8)


@dataclass(frozen=True)
class Struck:
    """What became of a run of which another process than the trainer was killed in ``step``."""

    process: str
    step: int
    status: int
    same: bool


def strike(reference: Reference, folder: Path, seed: int) -> Struck:
    """Kill a process that scores, or one of the server, and let the run go on by itself."""
    rng, setup = random.Random(seed), reference.setup
    step = rng.randint(1, setup.steps)
    if setup is SERVER:
        process = SERVER_PROCESSES[seed % len(SERVER_PROCESSES)]
        delay = rng.random() * reference.seconds["rollout"]
        how = f"KillServerAndClock, phase: rollout, step: {step}, seconds: {delay:.4f}, process: '{process}'"
    else:
        place = seed % 3
        process = "below it" if place else "started by the run"
        delay = rng.random() * reference.seconds["rollout"]  # responses are scored as they end
        how = f"KillReward, phase: rollout, step: {step}, seconds: {delay:.4f}, place: {place}"
    ended = train(folder, *setup.command, f"steps={setup.steps}", strike=how)
    journal = folder.with_suffix(".journal")
    struck = json.loads(journal.read_text())["step"] if journal.exists() else 0
    whole = ended.status == 0 and struck > 0
    newest = whole and step_of(by_age(folder / "checkpoints")[-1]) == setup.steps
    same = newest and reference.has(folder) and reference.exported(folder)
    return Struck(process, struck, ended.status, same and curves(folder) == curves(reference.folder))


def figures(setups: tuple[Setup, ...], trials: Trials, scratch: Path) -> Iterator[Figure]:
    @cache
    def reference(setup: Setup) -> Reference:
        return Reference(setup, scratch / f"reference-{setups.index(setup)}")

    for setup in setups:
        if setup in (REWARDS, SERVER):
            struck = []
            for seed in range(setup.kills):
                result = trials(
                    f"{setup.name}, kill {seed}",
                    lambda: strike(reference(setup), scratch / "struck", seed),  # noqa: B023
                )
                struck.append(Struck(**result))
                shutil.rmtree(scratch / "struck", ignore_errors=True)
            for process in dict.fromkeys(kill.process for kill in struck):
                kills = [kill for kill in struck if kill.process == process]
                same = sum(kill.same for kill in kills)
                name = f"{setup.name}: {process} killed, clock set back, the same bits in the end"
                yield at_least(name, same, f"of {len(kills)} kills", len(kills))
            continue
        chains: list[Chain] = []
        while sum(len(chain.kills) for chain in chains) < setup.kills:
            seed = len(chains)
            result = trials(
                f"{setup.name}, chain {seed}",
                lambda: kill_chain(reference(setup), scratch / "chain", seed, set_back),  # noqa: B023
            )
            chains.append(Chain(**result | {"kills": [Killed(**kill) for kill in result["kills"]]}))
            shutil.rmtree(scratch / "chain", ignore_errors=True)
        kills = [kill for chain in chains for kill in chain.kills]
        for phase in dict.fromkeys(kill.phase for kill in kills):
            yield Figure(f"{setup.name}: killed during {phase}", sum(k.phase == phase for k in kills), "kills")
        torn = sum(bool(kill.half_written) for kill in kills)
        yield Figure(f"{setup.name}: with a half-written checkpoint beside the whole ones", torn, "kills")
        same = sum(len(chain.kills) for chain in chains if chain.same)
        name = f"{setup.name}: killed, clock set back, nothing newer lost, the same bits in the end"
        yield at_least(name, same, f"of {len(kills)} kills", len(kills))


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    trials = Trials(None if quick else ROOT / ".cache" / "kills.jsonl")
    with tempfile.TemporaryDirectory() as scratch:
        measured = list(figures((QUICK,) if quick else (TRAINER, REWARDS, SERVER), trials, Path(scratch)))
    write("kills-quick" if quick else "kills", measured)


if __name__ == "__main__":
    main()
