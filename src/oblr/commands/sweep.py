"""Run a sweep: runs that differ in some settings, one after another or as the tasks of an array.

Finished runs are skipped, interrupted ones go on, failed ones start again.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf

from oblr.commands.compose import RUN_FOLDER, composer, job_config
from oblr.commands.launch import settle
from oblr.commands.parser import Parser
from oblr.commands.written import written
from oblr.errors import SettingError
from oblr.run.paths import CODE, INSTALLED
from oblr.run.plain import plain
from oblr.run.stopping import SIGNALS, at_once, process, waits
from oblr.run.sweeps import Task, check_folders, folder_name, varied, write_table
from oblr.run.terminal import say


def compose_tasks(arguments: Sequence[str]) -> tuple[Path, list[Task]]:
    """The sweep's folder, and the tasks that Hydra would make of these overrides.

    A run whose experiment does not name its folder gets one below the sweep's, named after what is swept.
    """
    with composer() as compose:
        sweep = compose("train", arguments, RunMode.MULTIRUN)
        folder, sweeper = Path(sweep.hydra.sweep.dir), sweep.hydra.sweeper
        # As they were typed: what they refer to may have characters that an override may not.
        typed = cast(dict[str, list[str]], OmegaConf.to_container(sweep.hydra.overrides, resolve=False))
        swept = OverridesParser.create().parse_overrides(
            [*(f"{name}={value}" for name, value in (sweeper.params or {}).items()), *typed["task"]]
        )
        lists, tasks = combinations(swept), []
        for number, (overrides, own) in enumerate(zip(lists, varied(lists), strict=True)):
            whole = [*typed["hydra"], *overrides, "hydra.mode=RUN", "ckpt_path=auto"]
            cfg = compose("train", whole, RunMode.RUN)
            os.environ[RUN_FOLDER] = str(folder / folder_name(own, list(cfg.hydra.runtime.choices)))
            own_config = job_config(cfg)
            settle(own_config, "train")
            place = Path(own_config.paths.output_dir)
            tasks.append(Task(number, tuple(whole), own, place, written(own_config)))
        del os.environ[RUN_FOLDER]
    check_folders(tasks)
    return folder, tasks


def combinations(swept: Sequence[Override]) -> list[list[str]]:
    """The overrides of every run, in the order of Hydra's own sweeper.

    Of what is given twice the later counts, and the last one varies fastest.

    Raises:
        SettingError: one of them gives no values in an order.
    """
    choices: dict[str, list[str]] = {}
    for override in swept:
        name = override.get_key_element()
        if getattr(override.value(), "shuffle", False):
            raise SettingError(name, "shuffled, task k is never the same run", "give an order")
        if not override.is_sweep_override():
            choices[name] = [f"{name}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            choices[name] = [f"{name}={value}" for value in override.sweep_string_iterator()]
        else:
            raise SettingError(name, "an interval has no first value", f"list some, as in {name}=1,2")
    return [list(overrides) for overrides in product(*choices.values())]


def command(task: Task) -> tuple[list[str], dict[str, str]]:
    """``train.py`` with the task's overrides, and the environment that tells it its folder."""
    script = ["-m", "oblr.commands.scripts"] if INSTALLED else [str(CODE / "src" / "train.py")]
    return [sys.executable, *script, *task.overrides], os.environ | {RUN_FOLDER: str(task.folder)}


def run(task: Task) -> int:
    """Run a task in a process of its own; returns its exit status. Ctrl-C reaches it without us."""
    arguments, environment = command(task)
    waits("", None)
    child = subprocess.Popen(arguments, env=environment)
    handlers = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number)),
    }
    try:
        return child.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        at_once("stopped; the same command goes on")


def run_all(tasks: Sequence[Task]) -> list[Task]:
    """Run what is not finished, whatever fails; returns the failed ones. A run that was told to stop ends the sweep."""
    failed = []
    for task in tasks:
        if task.finished:
            continue
        say(f"{task} ({task.number + 1} of {len(tasks)})")
        status = run(task)
        asked = status in (end for number in SIGNALS for end in (128 + number, -number))
        if asked or process.received is not None:
            say("stopped; the same command goes on")
            sys.exit(status if status > 0 else 128 + (process.received or -status))
        if status:
            failed.append(task)
    return failed


def become(task: Task, log: str | None) -> None:
    """Turn this process into the task's run, so that signals and exit status are its own; if it is not finished."""
    if task.finished:
        say(f"{task} is finished in {task.folder}")
        return
    if log is not None:
        task.folder.mkdir(parents=True, exist_ok=True)
        with (task.folder / log).open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    say(str(task))
    sys.stdout.flush()
    arguments, environment = command(task)
    os.execve(sys.executable, arguments, environment)


def show(folder: Path, tasks: Sequence[Task]) -> None:
    """Write and print the table, and write the report of all runs that have logged anything."""
    from oblr.record.curves import METRICS  # these load torch, for which the start of a run need not wait
    from oblr.report.page import whereabouts, write_report
    from oblr.report.runs import read_run

    say(*write_table(folder, tasks).splitlines())
    if begun := [read_run(task.folder) for task in tasks if (task.folder / METRICS).exists()]:
        say(f"report      {whereabouts(write_report(folder, begun))}")


def pick(tasks: Sequence[Task], number: int) -> Task:
    if number not in range(len(tasks)):
        raise SettingError("--task", f"there is no task {number}", f"this sweep has tasks 0 to {len(tasks) - 1}")
    return tasks[number]


def main() -> None:
    parser = Parser(
        __doc__,
        "python src/sweep.py experiment=sweep",
        'python src/sweep.py experiment=pocket baseline=rloo,none "seed=range(1,4)"',
        "python src/sweep.py --table experiment=sweep    # of what is finished",
    )
    parser.add_argument("overrides", nargs="*", help="as for train.py; experiment=sweep sets what is swept")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of configuration files of your own")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--count", action="store_true", help="print how many tasks there are")
    action.add_argument("--task", type=int, metavar="K", help="run task K alone, from 0")
    action.add_argument("--table", action="store_true", help="write table and report of what there is")
    parser.add_argument(
        "--log", metavar="NAME", help="with --task: append what the run says to this file in its folder"
    )
    asked = parser.parse_intermixed_args()
    own = [f"hydra.searchpath=[file://{asked.config_dir.resolve()}]"] if asked.config_dir else []
    folder, tasks = compose_tasks([*asked.overrides, *own])
    if asked.count:
        print(len(tasks))
    elif asked.table:
        show(folder, tasks)
    elif asked.task is not None:
        become(pick(tasks, asked.task), asked.log)
    else:
        failed = run_all(tasks)
        show(folder, tasks)
        for task in failed:
            print(plain(f"failed: {task}, {task.folder}"), file=sys.stderr)
        sys.exit(bool(failed))
