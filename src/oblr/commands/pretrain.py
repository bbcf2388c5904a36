"""``src/pretrain.py``: train a small base model from nothing."""

from pathlib import Path
from typing import Any

import hydra
import lightning as L
from omegaconf import DictConfig

from oblr.run.host import check_installed
from oblr.run.progress import Display, shown
from oblr.run.terminal import say


class Steps(L.Callback):
    """Shows how far training is: Lightning's own bar does not know how many steps an endless corpus has.

    Args:
        every: steps between lines where the output is not a terminal.
    """

    def __init__(self, display: Display, every: int = 50):
        self.display, self.every = display, every

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.display.phase("training")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.display.advance(1)
        if trainer.global_step % self.every == 0:
            self.display.progress.update(self.display.task, description=f"loss {outputs['loss']:.3f}")
            self.display.line()


def main(cfg: DictConfig) -> None:
    check_installed(vllm=False, triton=False)
    L.seed_everything(cfg.seed, verbose=False)
    with shown(cfg.trainer.max_steps, 0, "steps") as display:
        display.phase("tokenizer", sampling=False)
        module = hydra.utils.instantiate(cfg.pretraining, _convert_="all")
        trainer = hydra.utils.instantiate(cfg.trainer, callbacks=[Steps(display)], _convert_="all")
        trainer.fit(module)
    module.export(Path(cfg.export_to))
    say(f"base model written to {cfg.export_to}")
