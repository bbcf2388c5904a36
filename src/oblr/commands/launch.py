"""Start a script: compose its configuration and turn every error that the user can fix into one line.

Nothing here takes seconds to import: what can be found wrong without torch is said at once.
"""

import copy
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oblr.commands.compose import RUN_PROCESS, composer, job_config, processes, register_resolvers
from oblr.commands.near import unknown
from oblr.commands.resume import locates, resumed, resuming, told
from oblr.commands.typed import quoted, unreadable
from oblr.commands.written import know_secrets
from oblr.errors import FAULTS, REMEDIES, RunError, SettingError, page
from oblr.run.launchers import find_world
from oblr.run.paths import CONF, check_comes_along, with_page
from oblr.run.private import keep_caches
from oblr.run.terminal import busy, print_error, say, show_uncaught, unread, unseen
from oblr.settings.check import DISTORTING, check_settings
from oblr.settings.models import find_model

#: Packages that may end the program, and modules that others end it with.
OURS, ENDING = {"__main__", "oblr", "callbacks", "hydra"}, {"_sitebuiltins", "argparse"}
#: The status of a program whose output nobody reads any more: a shell's for SIGPIPE.
UNREAD = 141


def launch(config_name: str, command: str) -> None:
    """Run ``main`` of the module ``command`` on ``conf/<config_name>.yaml`` with the command line's overrides.

    Exits with status 2 and one line on the terminal for whatever the user can fix; other errors are raised.
    """
    register_resolvers()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing a page
    keep_caches()
    logging.getLogger("hydra").setLevel(logging.CRITICAL)  # it logs what it then raises
    sys.excepthook = show_uncaught
    sys.argv[1:] = map(quoted, sys.argv[1:])

    done: list[Path] = []

    def task(cfg: DictConfig, typed: Sequence[str] | None = None) -> None:
        try:
            run(cfg, typed)
        except Exception as error:  # Hydra would show all that was typed, and the error as it is
            show_uncaught(type(error), error, error.__traceback__)
            sys.exit(1)

    def run(cfg: DictConfig, typed: Sequence[str] | None) -> None:
        with own_environment(), unseen(), one_line_errors(config_name):
            if config_name == "train":
                cfg = resumed(cfg, told() if typed is None else typed)
            settle(cfg, config_name)
            busy("importing")  # seconds, in which a terminal is not to look dead
            importlib.import_module(command).main(cfg)
            if config_name == "train" and HydraConfig.get().mode == RunMode.MULTIRUN and not cfg.plan:
                done.append(Path(cfg.paths.output_dir))

    try:
        with one_line_errors(config_name):
            typed = resuming(sys.argv[1:]) if config_name == "train" else None
            if typed is not None:
                with composer() as compose:  # what is typed need not fit the defaults, but the run that goes on
                    cfg = compose("train", [override for override in typed if locates(override)], RunMode.MULTIRUN)
                    if cfg.hydra.mode is not RunMode.MULTIRUN:
                        return task(job_config(cfg), typed)
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(task)()
    finally:  # also where a later run has failed
        if len(done) > 1:
            report_together(done)


@contextmanager
def own_environment() -> Iterator[None]:
    """Variables that a job sets are gone after it: to the next one they would speak of a run that it is no part of."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def report_together(folders: Sequence[Path]) -> None:
    """Write the report of runs that were started together, beside them."""
    from oblr.report.page import (  # these load torch, for which the start of a run need not wait
        whereabouts,
        write_report,
    )
    from oblr.report.runs import find_runs

    say(f"report      {whereabouts(write_report(Path(os.path.commonpath(folders)), find_runs(folders)))}")


def settle(cfg: DictConfig, script: str) -> None:
    """Refuse settings that cannot work, before anything large is imported."""
    know_secrets(cfg)
    if script == "eval" and OmegaConf.is_list(cfg.get("model")):
        for model in cfg.model or [None]:  # what refers to it is told of one
            of_one = copy.deepcopy(cfg)
            of_one.model = model
            settle(of_one, script)
        return
    check_settings(cfg, script)
    if RUN_PROCESS not in os.environ:  # another rank of the run has started this process
        find_world(os.environ, *processes(cfg))
    if script == "train":
        check_comes_along(cfg.policy.path)
    if script == "train" and not cfg.plan:  # a plan knows some models itself
        find_model("policy.path", cfg.policy.path)
    if script == "eval" and cfg.compare is None and cfg.rescore is None and cfg.model != "last":
        find_model("model", cfg.model)


@contextmanager
def one_line_errors(script: str = "train") -> Iterator[None]:
    """Print what the user can fix in one line and exit with status 2; ``script`` has the settings that are known."""
    try:
        yield
    except (SystemExit, HydraException, OmegaConfBaseException, RunError, OSError, ValueError, TypeError) as error:
        if isinstance(error, BrokenPipeError | SystemExit) and unread():
            sys.exit(UNREAD)
        line = _one_line(error, script)
        if line is None:
            raise
        print_error(line)
        sys.exit(2)


def _one_line(error: BaseException, script: str) -> str | None:
    """What to tell the user; None where the fault is the program's own, or the program has ended by itself."""
    if isinstance(error, SystemExit):
        return _ended(_raiser(error), error.code)
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in causes:
        if isinstance(cause, SettingError):
            return with_page(str(cause), page(cause.setting))
        if isinstance(cause, RunError):
            return with_page(str(cause), cause.page)
        if isinstance(cause, OSError) and cause.errno in REMEDIES:
            name = os.fsdecode(cause.filename or "a file of the run")
            return with_page(f"{name}: {cause.strerror} ({REMEDIES[cause.errno]})", FAULTS)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_option(error.missing_cfg_file)
    if isinstance(error, ValueError | TypeError) and not isinstance(error, HydraException | OmegaConfBaseException):
        return _no_file(str(error)) if _raiser(error).partition(".")[0] == "hydra" else None
    if isinstance(error, OSError) and not isinstance(error, HydraException):  # a missing configuration is both
        return None
    if isinstance(error, InstantiationException) and not isinstance(causes[-1], TypeError | ImportError):
        return None
    if isinstance(error, HydraException):
        if (wrong := unreadable(sys.argv[1:])) is not None:
            return with_page(str(wrong), page(wrong.setting))
        with composer() as compose:
            meant = unknown(str(error), script, compose)
        if meant is not None and meant.setting not in DISTORTING:
            return with_page(str(meant), page(meant.setting))
    if missing := re.search(r"Environment variable '(\w+)' not found\s+full_key: (\S+)", str(error)):
        name, path = missing.groups()
        return with_page(f"{path}: the environment has no {name} (export {name}=… before the command)", page(path))
    said = "; ".join(line.strip().rstrip(".") for line in str(error).splitlines() if line.strip())
    known = re.search(r"'([\w.]+)'|([\w.]+)=", said)
    setting = next(filter(None, known.groups())) if known else ""
    return with_page(f"{setting}: {DISTORTING[setting]}" if setting in DISTORTING else said, page(setting))


def _ended(module: str, code: object) -> str | None:
    if module.partition(".")[0] in OURS:
        return None
    fix = "a module that is imported may do so below: if __name__ == '__main__'"
    return with_page(f"{module} has ended the program, by sys.exit({code!r}) ({fix})", page("reward"))


def _no_option(file: str) -> str:
    group = Path(file).parent
    options = sorted({path.stem for path in (CONF / group).glob("*.yaml")} - {"base"})
    near = get_close_matches(file.rpartition("/")[2], options, 1)
    fix = f"{f'did you mean {near[0]}? ' if near else ''}use some of {', '.join(options)}"
    return with_page(f"{group}: there is no {file} ({fix})", page(str(group)))


def _no_file(problem: str) -> str:
    """What Hydra says of a value that names of files cannot be; it does not say which group's."""
    for argument in sys.argv[1:]:
        group, _, value = argument.partition("=")
        folder = CONF / group
        if folder.is_dir() and not all((folder / f"{name}.yaml").is_file() for name in value.strip("[]").split(",")):
            return _no_option(f"{group}/{value}")
    return problem


def _raiser(error: BaseException) -> str:
    """The module that has raised it, or called what ends programs."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next(module for module in reversed(modules) if module not in ENDING)
