"""Copy the code and the composed configuration into a folder."""

from collections.abc import Sequence
from pathlib import Path

from hydra.types import RunMode
from omegaconf import OmegaConf

from oblr.commands.compose import composer, job_config
from oblr.commands.parser import Parser
from oblr.commands.written import as_told
from oblr.run.paths import CODE
from oblr.run.provenance import snapshot


def take_snapshot(folder: Path, overrides: Sequence[str]) -> None:
    with composer() as compose:
        config = OmegaConf.to_yaml(as_told(job_config(compose("train", overrides, RunMode.MULTIRUN))))
    snapshot(CODE, folder, config)


def main() -> None:
    parser = Parser(
        __doc__,
        "python src/snapshot.py runs/mine/code experiment=pocket",
        "python src/snapshot.py runs/8b/code experiment=oblr_qwen3_8b",
        "python src/snapshot.py FOLDER OVERRIDES",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*", help="as for train.py")
    take_snapshot(**vars(parser.parse_args()))
