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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oblr.commands.near import unknown
from oblr.errors import FAULTS, REMEDIES, RunError, SettingError, page
from oblr.run.manifest import by_age
from oblr.run.moved import renewed
from oblr.run.places import CONF, ROOT, models_of, with_page
from oblr.run.terminal import busy, print_error, print_warning, unseen
from oblr.settings.check import DISTORTING, check_settings, leaves
from oblr.settings.models import find_model


def newest_run(runs: str) -> str:
    """The run folder below ``runs`` that has the newest complete checkpoint."""
    checkpoints = [path for folder in Path(runs).glob("*/checkpoints") for path in by_age(folder)]
    if not checkpoints:
        raise SettingError("ckpt_path", f"no run below {runs} has a checkpoint to resume", "start without ckpt_path")
    return str(max(checkpoints, key=lambda path: path.stat().st_mtime_ns).parent.parent)


#: Tells the processes that a run starts on the other devices of its node where its folder is.
RUN_FOLDER = "OBLR_RUN_FOLDER"
#: … and which process has started them.
RUN_PROCESS = "OBLR_RUN_PROCESS"


def run_folder(runs: str, ckpt_path: str | None) -> str:
    """A new folder below ``runs``, or the newest one with a checkpoint where that is to be resumed."""
    if RUN_FOLDER in os.environ:
        return os.environ[RUN_FOLDER]
    return newest_run(runs) if ckpt_path == "last" else f"{runs}/{datetime.now():%Y-%m-%d_%H-%M-%S}"


def register_resolvers() -> None:
    """Functions that the configuration files call."""
    OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
    OmegaConf.register_new_resolver("models", lambda root: str(models_of(root)), replace=True)
    OmegaConf.register_new_resolver(
        "computed_in", lambda precision, dtype: "bfloat16" if precision == "bf16-mixed" else dtype, replace=True
    )
    OmegaConf.register_new_resolver("run_folder", run_folder, use_cache=True, replace=True)


def launch(config_name: str, command: str) -> None:
    """Run ``main`` of the module ``command`` on ``conf/<config_name>.yaml`` with the command line's overrides.

    Exits with status 2 and one line on the terminal for whatever the user can fix; other errors are raised.
    """
    register_resolvers()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing a page
    logging.getLogger("hydra").setLevel(logging.CRITICAL)  # it logs what it then raises

    def task(cfg: DictConfig) -> None:
        with unseen(), one_line_errors(config_name):
            settle(cfg, config_name)
            busy("importing")  # seconds, in which a terminal is not to look dead
            importlib.import_module(command).main(cfg)

    with one_line_errors(config_name):
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(task)()


def settle(cfg: DictConfig, script: str) -> None:
    """Give old paths their new names and refuse settings that cannot work, before anything large is imported."""
    renew_paths(cfg)
    if script == "eval" and OmegaConf.is_list(cfg.get("model")):
        for model in cfg.model or [None]:  # what refers to it is told of one
            of_one = copy.deepcopy(cfg)
            of_one.model = model
            settle(of_one, script)
        return
    check_settings(cfg, script)
    if script == "train" and not cfg.plan:  # a plan knows some models itself
        find_model("policy.path", cfg.policy.path)
    if script == "eval" and cfg.compare is None and cfg.rescore is None and cfg.model != "last":
        find_model("model", cfg.model)


def renew_paths(cfg: DictConfig) -> None:
    """Name classes by their paths of today, and say so."""
    for path, value in leaves(OmegaConf.to_container(cfg, resolve=False)):
        if path.endswith("_target_") and (new := renewed(str(value))) != value:
            OmegaConf.update(cfg, path, new)
            print_warning(f"{path}: {value} is {new} now; the old path goes with release 0.3")


@contextmanager
def composer() -> Iterator[Callable[[str, Sequence[str], RunMode], DictConfig]]:
    """Yields what composes a configuration, ``hydra`` included, of its name, overrides and mode."""
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):

        def compose(config_name: str, overrides: Sequence[str], mode: RunMode) -> DictConfig:
            composing = GlobalHydra.instance().hydra
            assert composing is not None
            cfg = composing.compose_config(config_name, list(overrides), mode)
            HydraConfig.instance().set_config(cfg)
            return cfg

        yield compose


def job_config(cfg: DictConfig) -> DictConfig:
    """Without ``hydra``."""
    return OmegaConf.masked_copy(cfg, [str(name) for name in cfg if name != "hydra"])


@contextmanager
def one_line_errors(script: str = "train") -> Iterator[None]:
    """Print what the user can fix in one line and exit with status 2; ``script`` has the settings that are known."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, RunError, OSError, ValueError, TypeError) as error:
        line = _one_line(error, script)
        if line is None:
            raise
        print_error(line)
        sys.exit(2)


def _one_line(error: BaseException, script: str) -> str | None:
    """What to tell the user; None where the fault is the program's own."""
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
        return _no_file(str(error)) if _raiser(error) == "hydra" else None
    if isinstance(error, OSError) and not isinstance(error, HydraException):  # a missing configuration is both
        return None
    if isinstance(error, InstantiationException) and not isinstance(causes[-1], TypeError | ImportError):
        return None
    if isinstance(error, HydraException):
        with composer() as compose:
            if meant := unknown(str(error), script, compose):
                return with_page(str(meant), page(meant.setting))
    said = "; ".join(line.strip().rstrip(".") for line in str(error).splitlines() if line.strip())
    known = re.search(r"'([\w.]+)'|([\w.]+)=", said)
    setting = next(filter(None, known.groups())) if known else ""
    return with_page(f"{setting}: {DISTORTING[setting]}" if setting in DISTORTING else said, page(setting))


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
    """The package that has raised it."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).partition(".")[0]
