"""Train a policy: ``python src/train.py experiment=pocket``."""

import os
import sys
from pathlib import Path

import hydra
import lightning as L
import rich
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from callbacks.graceful_stop import GracefulStop
from callbacks.summary import outcome
from launch import ROOT, RUN_FOLDER, launch
from oblr.checks import check_batch, check_folder, check_machine, check_policy, find_checkpoint
from oblr.model import load_tokenizer
from oblr.provenance import write_finished, write_record
from oblr.terminal import quiet_terminal


def main(cfg: DictConfig) -> None:
    # Whatever can be found wrong is found here: nothing has been loaded or written yet.
    folder = Path(cfg.paths.output_dir)
    check_machine(**cfg.requires)
    config = check_policy(cfg.policy.path, cfg.policy.dtype, cfg.rollout.max_model_len)
    checkpoint = find_checkpoint(cfg.ckpt_path, folder, config)
    tokenizer = load_tokenizer(cfg.policy.path)
    policy = hydra.utils.instantiate(cfg.policy, _convert_="all")
    datamodule = hydra.utils.instantiate(cfg.rollout, tokenizer=tokenizer, _convert_="all")
    check_batch(
        policy.baseline,
        policy.schedule,
        cfg.rollout.prompts_per_step,
        cfg.rollout.group_size,
        cfg.trainer.devices,
        cfg.trainer.num_nodes,
    )
    first = rank_zero_only.rank == 0
    check_folder(folder, joining=cfg.ckpt_path is not None or not first)

    with quiet_terminal(folder / ("train.log" if first else f"train-rank{rank_zero_only.rank}.log")):
        L.seed_everything(cfg.seed)
        if first:
            write_record(folder, ROOT, OmegaConf.to_yaml(cfg, resolve=True), seed=cfg.seed)
        trainer = build_trainer(cfg)
        datamodule.weights, datamodule.clock = policy.weights, policy.clock
        datamodule.greedy = policy.baseline.needs_greedy
        os.environ[RUN_FOLDER] = str(folder)
        trainer.fit(policy, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
        del os.environ[RUN_FOLDER]
        policy.scorer.export(tokenizer, folder / "policy")
        rich.print(f"policy      {folder / 'policy'}")
        stop = next((callback for callback in trainer.callbacks if isinstance(callback, GracefulStop)), None)
        if stop is not None and stop.received is not None:
            rich.print(f"stopped after step {trainer.current_epoch}; go on with ckpt_path=last")
            sys.exit(128 + stop.received)
        if first:
            write_finished(folder, steps=trainer.current_epoch, metrics=outcome(trainer))


def build_trainer(cfg: DictConfig) -> L.Trainer:
    callbacks = hydra.utils.instantiate(cfg.callbacks, _convert_="all")
    logger = hydra.utils.instantiate(cfg.logger, _convert_="all")
    return hydra.utils.instantiate(cfg.trainer, callbacks=list(callbacks.values()), logger=logger, _convert_="all")


if __name__ == "__main__":
    launch("train", main)
