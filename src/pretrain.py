"""Train a small base model from nothing: ``python src/pretrain.py experiment=pocket_base``."""

from pathlib import Path

import hydra
import lightning as L
from omegaconf import DictConfig

from launch import launch


def main(cfg: DictConfig) -> None:
    L.seed_everything(cfg.seed, verbose=False)
    module = hydra.utils.instantiate(cfg.pretraining, _convert_="all")
    trainer = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    trainer.fit(module)
    module.export(Path(cfg.export_to))
    print(f"base model written to {cfg.export_to}")


if __name__ == "__main__":
    launch("pretrain", main)
