"""Faulty model folders on every entry point: what is said of each, and whose weights a run that goes on has.

    python benchmarks/folders.py [--quick] [--faults WORD]

``tests/helpers/bad_folders.py`` spoils a small sound folder in one way each (weights that the file lacks, has too many
of, or in another form; files that are pointers, cut off or absent; configurations and tokenizers of another model; what
could not be written after the last step) and changes it in ways that must not matter. Each is given to every entry
point: as the policy of a run with each engine, its reference, the base of its adapters, sharded, to evaluations, a
plan, a server, and as an engine's own folder. A try is a process of its own: what it is told has been composed before,
once for each entry point, except where the folder is sound or a plan is made, which goes the command line's own way.

Right is: one line, status 2 and no step taken; or, of a folder that is sound, a step of no size after which the
exported weights are the folder's, bit by bit, and greedy responses that are those of the folder that nothing was done
to. Anything else is WRONG: a traceback, several lines, or random weights.
"""

import functools
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from figures import ROOT, Figure, at_most, parser, write
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

sys.path.extend(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "helpers")))  # bad_folders imports conftest.py
from bad_folders import FAULTS, SOUND, UNPLANNED, UNWRITTEN, make

from oblr.commands.launch import composer, job_config, launch, one_line_errors, settle
from oblr.settings.check import leaves

TRAIN = (
    *("experiment=pocket", "steps=1", "eta0=1e-30", "rollout.prompts_per_step=2", "rollout.group_size=2"),
    *("rollout.max_new_tokens=8", "data.held_out.size=2", "~callbacks.summary", "~callbacks.evaluation"),
)
EVAL = ("benchmarks=[chain_sum]", "limit=2", "samples=1", "temperature=0", "benchmarks.chain_sum.max_new_tokens=8")
HF = "rollout.engine=hf"
#: Script, and what is typed where FOLDER is the folder and SOUND one that nothing was done to.
ENTRIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "train": ("train", (*TRAIN, HF, "policy.path=FOLDER")),
    "reference": ("train", (*TRAIN, HF, "policy.path=FOLDER", "kl=k3")),
    "LoRA": ("train", (*TRAIN, HF, "policy.path=FOLDER", "policy.adapter=lora")),
    "FSDP": ("train", (*TRAIN, HF, "policy.path=FOLDER", "trainer=fsdp", "trainer.devices=1")),
    "vllm": ("train", (*TRAIN, "rollout.engine=vllm", "policy.path=FOLDER")),
    "server": ("train", (*TRAIN, "rollout.engine=server", "policy.path=FOLDER")),
    "engine's own": ("train", (*TRAIN, HF, "policy.path=SOUND", "rollout.engines.hf.model=FOLDER")),
    "eval": ("eval", (*EVAL, HF, "model=FOLDER")),
    "eval vllm": ("eval", (*EVAL, "rollout.engine=vllm", "model=FOLDER")),
    "plan": ("train", (*TRAIN, HF, "policy.path=FOLDER", "plan=true")),
    "serve": ("serve", (*TRAIN, "policy.path=FOLDER")),
}
COMMANDS = {"train": "oblr.commands.train", "eval": "oblr.commands.evaluate"}
#: What entry points may go on with: some read neither prompts nor numbers nor, of an engine's folder, a tokenizer.
BLIND = dict.fromkeys(("plan", "serve", "engine's own"), UNPLANNED) | dict.fromkeys(("eval", "eval vllm"), UNWRITTEN)
#: Entry points that take minutes to say that all is well: they are given sound folders unless asked to be quick.
SLOW = ("vllm", "server", "eval vllm")


def started(composed: dict[str, DictConfig], entry: str, words: dict[str, str]) -> None:
    """Be what is started at an entry point with these folders in place of names."""
    script, typed = ENTRIES[entry]
    arguments = [*(re.sub("FOLDER|SOUND", lambda found: words[found[0]], one) for one in typed)]
    with one_line_errors():
        if script == "serve":
            os.execve = lambda *command: sys.exit(0)  # type: ignore[assignment]  # all that is looked at has been
            return importlib.import_module("oblr.commands.serve").serve("127.0.0.1", 1, arguments)
        HydraConfig.instance().set_config(composed[entry])
        cfg = job_config(composed[entry])
        for name, value in leaves(OmegaConf.to_container(cfg, resolve=False)):
            if isinstance(value, str) and value in words:
                OmegaConf.update(cfg, name, words[value])
        settle(cfg, script)
        importlib.import_module(COMMANDS[script]).main(cfg)


def typed(entry: str, words: dict[str, str]) -> None:
    """The same by the command line's own way."""
    script, arguments = ENTRIES[entry]
    given = [re.sub("FOLDER|SOUND", lambda found: words[found[0]], one) for one in arguments]
    GlobalHydra.instance().clear()
    sys.argv[:] = [f"src/{script}.py", *given, f"paths.output_dir={words['RUN']}"]
    launch(script, COMMANDS[script])


def outcome(action: Callable[[], None], folder: Path) -> tuple[int, str, str]:
    """Status, standard output and standard error of a process that has imported already."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
            action()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            importlib.import_module("traceback").print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended), (folder / "out").read_text(), (folder / "err").read_text()


def tried(
    entry: str, change: Callable[[Path], object], sound: Path, composed: dict[str, DictConfig]
) -> tuple[int, str, str, Path]:
    """What comes of a folder after ``change`` at an entry point: status, both outputs, and where it happened."""
    place = Path(tempfile.mkdtemp(dir=sound.parent))
    shutil.copytree(sound, place / "model")
    change(place / "model")
    words = {"FOLDER": str(place / "model"), "SOUND": str(sound), "RUN": str(place / "run")}
    way = functools.partial(started, composed) if entry in composed or entry == "serve" else typed
    return *outcome(functools.partial(way, entry, words), place), place


def judged(entry: str, status: int, said: str, complained: str, place: Path) -> str:
    """``refused: …``, ``right``, or ``WRONG: …``."""
    lines = [line for line in complained.splitlines() if line.strip()]
    if status == 2 and len(lines) == 1 and lines[0].startswith("error: "):
        steps = list(place.glob("run/**/*.ckpt")) or list(place.glob("run/policy"))
        return "WRONG: refused after a step" if steps else f"refused: {lines[0].removeprefix('error: ')}"
    if status or "Traceback" in said + complained:
        return f"WRONG: status {status}, {(lines or ['nothing said'])[-1]}"
    if ENTRIES[entry][0] == "eval":
        return "right" if answers(place) else "WRONG: no answers"
    return "right" if entry in ("plan", "serve") or same_weights(place) else "WRONG: other weights than the folder's"


def same_weights(place: Path) -> bool:
    """Whether what was exported is what the folder has, in float32."""
    exported = load_file(place / "run" / "policy" / "model.safetensors")
    stored = {name: w for file in (place / "model").glob("model*.safetensors") for name, w in load_file(file).items()}
    return all(name in stored and bool((w == stored[name].float()).all()) for name, w in exported.items())


def answers(place: Path) -> list[list[str]]:
    lines = (line for file in sorted(place.glob("run/*.jsonl")) for line in file.read_text().splitlines())
    return [row["responses"] for row in map(json.loads, lines) if "responses" in row]


def tries(quick: bool, word: str) -> Iterator[tuple[str, str]]:
    """Change and entry point; if it is to be quick, every third fault at one of them, in turn."""
    faults = [name for name in FAULTS if word in name]
    if quick:
        yield from ((name, list(ENTRIES)[i % len(ENTRIES)]) for i, name in enumerate(faults[::3]))
        yield from (("sound", entry) for entry in ("train", "eval") if word in "sound")
        return
    yield from ((name, entry) for name in faults for entry in ENTRIES)
    changes = [name for name in SOUND if word in name]
    yield from ((name, entry) for name in changes for entry in ENTRIES if entry not in (*SLOW, "serve"))
    yield from (("sound", entry) for entry in SLOW if word in "sound")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--faults", default="", help="those whose names have this word alone; the result is not kept")
    asked = options.parse_args()
    os.chdir(ROOT)
    os.environ |= {"HYDRA_FULL_ERROR": "1", "PYTHONWARNINGS": "ignore"}
    for command in (*COMMANDS.values(), "oblr.commands.serve"):
        importlib.import_module(command)
    verdicts: dict[tuple[str, str], str] = {}
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, composer() as compose:
        sound, expected = make(Path(folder, "sound")), None
        composed = {
            entry: compose(script, [*told, "paths.output_dir=RUN"], RunMode.RUN)
            for entry, (script, told) in ENTRIES.items()
            if entry not in ("serve", "plan")
        }
        for name, entry in tries(asked.quick, asked.faults):
            change, start = SOUND[name] if name in SOUND else FAULTS[name][0], time.perf_counter()
            status, said, complained, place = tried(entry, change, sound, {} if name in SOUND else composed)
            verdict = judged(entry, status, said, complained, place).replace(str(place), "…")
            seconds.append(time.perf_counter() - start)
            if verdict == "right" and name in FAULTS and name not in BLIND.get(entry, ()):
                verdict = "WRONG: went on as if all was well"
            if verdict != "right" and name in SOUND:
                verdict = f"WRONG: {verdict}"
            if verdict == "right" and entry == "eval":
                expected = expected or answers(place)
                verdict = "right" if answers(place) == expected else "WRONG: other answers than the sound folder's"
            verdicts[name, entry] = verdict
            if verdict.startswith("WRONG"):
                print(f"{name}, {entry}: {verdict}\n{said}\n{complained}", flush=True)
            shutil.rmtree(place)
    show(verdicts)
    counts = {kind: sum(v.startswith(kind) for v in verdicts.values()) for kind in ("refused", "right", "WRONG")}
    figures = [
        Figure("folders", len({name for name, _ in verdicts}), ""),
        Figure("entry points", len({entry for _, entry in verdicts}), ""),
        Figure("refused in one line", counts["refused"], ""),
        Figure("right", counts["right"], ""),
        at_most("tracebacks, several lines, or other weights", counts["WRONG"], "", 0),
        Figure("median time of a try", sorted(seconds)[len(seconds) // 2], "s"),
    ]
    if not asked.faults:
        write("folders-quick" if asked.quick else "folders", figures)
    sys.exit(counts["WRONG"] > 0)


def show(verdicts: dict[tuple[str, str], str]) -> None:
    """A row for each folder, with the line that was said first, and a column for each entry point."""
    entries = [entry for entry in ENTRIES if any(entry == one for _, one in verdicts)]
    table = Table("folder", *entries, "line", title="what entry points say of model folders")
    for name in dict.fromkeys(name for name, _ in verdicts):
        own = {entry: verdicts[name, entry] for entry in entries if (name, entry) in verdicts}
        line = next((v.removeprefix("refused: ") for v in own.values() if v.startswith("refused")), "")
        table.add_row(name, *(own.get(entry, "").partition(":")[0] for entry in entries), line)
    Console(width=240).print(table)


if __name__ == "__main__":
    main()
