"""Copy the code and the composed configuration: ``python src/snapshot.py FOLDER experiment=pocket``."""

import sys
from pathlib import Path

from hydra.types import RunMode
from omegaconf import OmegaConf

from launch import ROOT, composer, job_config, one_line_errors
from oblr.provenance import snapshot


def main(folder: str, *overrides: str) -> None:
    with composer() as compose:
        config = OmegaConf.to_yaml(job_config(compose("train", overrides, RunMode.MULTIRUN)))
    snapshot(ROOT, Path(folder), config)


if __name__ == "__main__":
    with one_line_errors():
        main(*sys.argv[1:])
