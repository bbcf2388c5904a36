"""``src/pretrain.py``: train a small base model from nothing."""

from pathlib import Path

import hydra
import lightning as L
from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    L.seed_everything(cfg.seed, verbose=False)
    module = hydra.utils.instantiate(cfg.pretraining, _convert_="all")
    trainer = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    trainer.fit(module)
    module.export(Path(cfg.export_to))
    print(f"base model written to {cfg.export_to}")
