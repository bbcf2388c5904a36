"""``src/train.py``: train a policy."""

import os
import sys
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import rich
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from callbacks.graceful_stop import GracefulStop
from callbacks.record import RunRecord
from callbacks.summary import outcome
from oblr.checks import (
    check_batch,
    check_engine,
    check_folder,
    check_loss,
    check_machine,
    check_policy,
    find_checkpoint,
    trained,
)
from oblr.commands.changed import changed, changes_table, own_settings
from oblr.commands.launch import RUN_FOLDER, RUN_PROCESS
from oblr.commands.plan import show_plan
from oblr.data.ends import end_tokens
from oblr.policy.loading import load_tokenizer
from oblr.report.page import write_report
from oblr.report.runs import read_run
from oblr.run.places import CODE
from oblr.run.processes import die_with_parent, log_file, watched
from oblr.run.provenance import write_finished, write_record
from oblr.run.stopping import at_once, contents, owns, process
from oblr.run.terminal import busy, quiet_terminal, say
from oblr.settings.check import leaves

#: Sections and settings in which runs of one sweep may differ.
COMPARED = ["seed", "steps", "eta0", "baseline", "loss", "schedule", "gradnorm", "kl", "optimizer"]


def main(cfg: DictConfig) -> None:
    if cfg.plan:
        return show_plan(cfg)
    if RUN_FOLDER in os.environ:
        die_with_parent(int(os.environ.get(RUN_PROCESS, os.getppid())))
    told = OmegaConf.to_container(cfg, resolve=False)
    busy("checking settings and data")
    # Whatever can be found wrong is found here: nothing has been loaded or written yet.
    folder = Path(cfg.paths.output_dir)
    check_machine(**cfg.requires)
    config = check_policy(cfg.policy.path, cfg.policy.dtype, cfg.rollout.max_model_len)
    check_engine(config, cfg.rollout.engine, cfg.rollout.engines)
    tokenizer = load_tokenizer(cfg.policy.path)
    policy = hydra.utils.instantiate(cfg.policy, _convert_="all")
    checkpoint = find_checkpoint(cfg.ckpt_path, folder, trained(config, policy.lora), policy.base)
    end_ids = end_tokens(cfg.policy.path, tokenizer)
    datamodule = hydra.utils.instantiate(cfg.rollout, tokenizer=tokenizer, end_ids=end_ids, _convert_="all")
    check_batch(
        policy.baseline,
        policy.schedule,
        cfg.rollout.prompts_per_step,
        cfg.rollout.group_size,
        cfg.trainer.devices,
        cfg.trainer.num_nodes,
    )
    dtypes = {cfg.trainer.precision, cfg.policy.dtype, cfg.engine_dtype}
    check_loss(policy.loss, dtypes, cfg.rollout.max_new_tokens)
    rank: int = rank_zero_only.rank  # type: ignore[attr-defined]
    first = rank == 0
    joining = cfg.ckpt_path is not None or not first
    before = contents(folder)
    check_folder(folder, joining)
    process.silent = not first
    if not joining:  # a run that ends before its first step leaves nothing behind
        owns(folder, before)
    at_once("stopped; the checkpoint is as it was" if checkpoint else "stopped; nothing has been trained")
    busy("preparing the run")

    with quiet_terminal(log_file(folder, rank)):
        L.seed_everything(cfg.seed)
        if first:
            write_record(folder, CODE, OmegaConf.to_yaml(cfg, resolve=True), seed=cfg.seed, told=own_settings(told))
            rich.print(changes_table(changed(told, "train")))
            say(*datamodule.notes)
        trainer = build_trainer(cfg)
        datamodule.weights, datamodule.clock = policy.weights, policy.clock
        datamodule.greedy = policy.baseline.needs_greedy
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        stop = next((callback for callback in callbacks if isinstance(callback, GracefulStop)), None)
        if stop is None:  # nobody says when a step has been taken
            stop = GracefulStop()
            owns(None)
            at_once("stopped")
        process.endings = [stop.requeue]
        for own in trainer.loggers:
            own.log_hyperparams(compared(cfg))
        os.environ |= {RUN_FOLDER: str(folder), RUN_PROCESS: str(os.getpid())}
        if checkpoint is not None:
            say(f"resuming    {checkpoint}")
        with watched(lambda: getattr(trainer.strategy.launcher, "procs", []), folder):
            trainer.fit(policy, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
        del os.environ[RUN_FOLDER], os.environ[RUN_PROCESS]
        if stop.received is not None:
            if first:
                say(f"stopped after step {trainer.current_epoch}; go on with ckpt_path=last")
            stop.requeue()
            sys.exit(128 + stop.received if first else 0)  # one rank speaks for all
        busy("writing the policy and the report")
        policy.scorer.export(tokenizer, folder / "policy", policy.compute_dtype)
        if first:
            say(f"policy      {folder / 'policy'}")
            write_finished(folder, steps=trainer.current_epoch, metrics=outcome(folder))
            say(f"report      {write_report(folder, [read_run(folder)])}")
    at_once("stopped; the run was complete", status=0)


def compared(cfg: DictConfig) -> dict[str, Any]:
    """The settings by which runs of a sweep are told apart: a part of the method is called by its class."""
    sections = OmegaConf.to_container(OmegaConf.masked_copy(cfg, COMPARED), resolve=True)
    found = {}
    for path, value in leaves(sections):
        name = path.removesuffix("._target_")
        found[name] = (
            value.rpartition(".")[2] if name != path else value if isinstance(value, float | int) else str(value)
        )
    return found


def build_trainer(cfg: DictConfig) -> L.Trainer:
    callbacks = hydra.utils.instantiate(cfg.callbacks, _convert_="all")
    loggers: list[Logger] = [RunRecord(cfg.paths.output_dir)]
    if cfg.logger:
        loggers.append(hydra.utils.instantiate(cfg.logger, _convert_="all"))
    # GracefulStop requeues, after the step; Lightning would do it in the middle of one.
    plugins = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else None
    return hydra.utils.instantiate(
        cfg.trainer, callbacks=list(callbacks.values()), logger=loggers, plugins=plugins, _convert_="all"
    )
