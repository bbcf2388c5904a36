"""Compose configurations with Hydra, and say where runs lie. Nothing here takes seconds to import."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from oblr.commands.written import heed_secrets
from oblr.errors import SettingError
from oblr.run.manifest import found
from oblr.run.paths import CONF, ROOT, models_of
from oblr.run.provenance import number_of


def newest_run(runs: str, pattern: str = "*") -> str:
    """The run folder below ``runs``, of those that match and have a checkpoint, that was begun or gone on with last.

    By the number that each has noted; of runs of earlier versions, which have none, by the time of the checkpoint.
    """
    saved = {place.parent: own for place in Path(runs).glob(f"{pattern}/checkpoints") if (own := found(place))}
    if not saved:
        raise SettingError("ckpt_path", f"no run below {runs} has a checkpoint to resume", "start without ckpt_path")

    def place(run: Path) -> tuple[int, int, str]:
        number = number_of(run)
        return number, 0 if number else saved[run][-1].stat().st_mtime_ns, run.name

    return str(max(saved, key=place))


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
    heed_secrets()
    OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
    OmegaConf.register_new_resolver("models", lambda root: str(models_of(root)), replace=True)
    OmegaConf.register_new_resolver(
        "computed_in", lambda precision, dtype: "bfloat16" if precision == "bf16-mixed" else dtype, replace=True
    )
    OmegaConf.register_new_resolver("run_folder", run_folder, use_cache=True, replace=True)


@contextmanager
def composer() -> Iterator[Callable[[str, Sequence[str], RunMode], DictConfig]]:
    """Yields what composes a configuration, ``hydra`` included, of its name, overrides and mode."""
    register_resolvers()
    at_work = GlobalHydra.instance().is_initialized()  # as where a task fails
    with nullcontext() if at_work else initialize_config_dir(str(CONF), version_base="1.3"):
        yield compose


def compose(config_name: str, overrides: Sequence[str], mode: RunMode) -> DictConfig:
    """The same where Hydra is at work already, which takes this for the configuration that it is running."""
    composing = GlobalHydra.instance().hydra
    assert composing is not None
    cfg = composing.compose_config(config_name, list(overrides), mode)
    HydraConfig.instance().set_config(cfg)
    return cfg


def processes(cfg: DictConfig) -> tuple[int, int]:
    """Of a script: how many on each machine, and how many machines."""
    devices, nodes = OmegaConf.select(cfg, "trainer.devices"), OmegaConf.select(cfg, "trainer.num_nodes")
    if devices == "auto":
        import torch  # takes seconds, and nothing else says how many there are

        devices = max(torch.cuda.device_count(), 1)
    return len(devices) if OmegaConf.is_list(devices) else devices or 1, nodes or 1


def job_config(cfg: DictConfig) -> DictConfig:
    """Without ``hydra``."""
    return OmegaConf.masked_copy(cfg, [str(name) for name in cfg if name != "hydra"])
