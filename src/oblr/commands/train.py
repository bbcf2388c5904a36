"""``src/train.py``: train a policy."""

import copy
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hydra
import lightning as L
import rich
from hydra.core.hydra_config import HydraConfig
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from oblr.commands.changed import changed, changes_table, own_settings
from oblr.commands.checks import (
    check_batch,
    check_engine,
    check_folder,
    check_followed,
    check_loss,
    check_machine,
    check_model,
    check_policy,
    check_refill,
    check_replicas,
    check_served,
    check_steps,
    find_checkpoint,
    runs_vllm,
    trained,
)
from oblr.commands.compose import RUN_FOLDER, RUN_PROCESS, processes
from oblr.commands.plan import beside, show_plan
from oblr.commands.resume import told as overrides_told
from oblr.commands.resume import where_it_was
from oblr.commands.written import as_told, as_yaml, written
from oblr.data.ends import end_tokens
from oblr.policy.loading import identity, load_tokenizer
from oblr.policy.method import in_words
from oblr.policy.step import PolicyModule
from oblr.record.figures import outcome
from oblr.record.going_on import GoingOn
from oblr.record.logger import RunRecord
from oblr.record.shown import Rows, show
from oblr.record.tags import GOVERNED
from oblr.report.page import whereabouts, write_report
from oblr.report.runs import read_run
from oblr.run import inputs
from oblr.run.checkpoint import meta
from oblr.run.launchers import find_world
from oblr.run.lock import sole_user
from oblr.run.manifest import read_manifest
from oblr.run.meeting import check_interfaces
from oblr.run.paths import CODE
from oblr.run.processes import die_with_parent, log_file, watched
from oblr.run.provenance import next_number, write_finished, write_record
from oblr.run.requeue import requeue
from oblr.run.resumed import shown
from oblr.run.secrets import masked_overrides
from oblr.run.stopping import Graceful, at_once, contents, owns, process
from oblr.run.terminal import busy, print_warning, quiet_terminal, say
from oblr.settings.check import leaves

#: Sections and settings in which runs of one sweep may differ.
COMPARED = ["seed", "steps", "eta0", "baseline", "loss", "schedule", "gradnorm", "kl", "optimizer"]
#: What TensorBoard calls the places at which a run has gone on.
RESUMED = "run/resumed"


def main(cfg: DictConfig) -> None:
    if cfg.plan:
        return show_plan(cfg)
    if RUN_FOLDER in os.environ:
        die_with_parent(int(os.environ.get(RUN_PROCESS, os.getppid())))
    told, kept = as_told(cfg), written(cfg)  # before Hydra puts values in place of what refers to them
    inputs.forget_data()
    busy("checking settings and data")
    # Whatever can be found wrong is found here: nothing has been loaded or written yet.
    folder = Path(cfg.paths.output_dir)
    rank: int = rank_zero_only.rank  # type: ignore[attr-defined]
    first = rank == 0
    held, places = ExitStack(), folders_of(cfg) if first else {}  # one rank speaks for all
    resumed = {name: place for name, place in places.items() if cfg.ckpt_path is not None and place.is_dir()}
    unlocked = [held.enter_context(sole_user(place, name)) for name, place in resumed.items()]
    check_replicas(cfg.trainer.strategy.get("replicas", 1), cfg.trainer.devices, cfg.trainer.num_nodes)
    check_interfaces(cfg.trainer.num_nodes)
    check_machine(**cfg.requires, vllm=runs_vllm(cfg.rollout.engine, cfg.rollout.engines))
    config = check_policy(cfg.policy.path, cfg.policy.dtype, cfg.rollout.max_model_len)
    check_engine(config, cfg.rollout.engine, cfg.rollout.engines)
    tokenizer = load_tokenizer(cfg.policy.path)
    sharded = cfg.trainer.strategy._target_ == "oblr.run.strategies.FSDP"
    vocabulary = check_model(cfg.policy.path, config, tokenizer, by_name=sharded, exported=True)
    check_served(cfg.policy.path, config, cfg.rollout.engine, cfg.rollout.engines)
    end_ids = end_tokens(cfg.policy.path, tokenizer)
    policy = make_policy(cfg, identity(config, tokenizer, end_ids), told, kept)
    checkpoint, differing = None, []
    if cfg.ckpt_path is not None:
        checkpoint = find_checkpoint(cfg.ckpt_path, folder, trained(config, policy.lora), policy.base)
    if checkpoint is not None:
        differing = check_followed(checkpoint, policy, where_it_was(cfg, checkpoint))
    given = {"tokenizer": tokenizer, "end_ids": end_ids, "vocabulary": vocabulary}
    datamodule = hydra.utils.instantiate(cfg.rollout, **given, _convert_="all")
    policy.beside = beside(cfg, config)
    check_batch(
        policy.baseline,
        policy.schedule,
        cfg.rollout.prompts_per_step,
        cfg.rollout.group_size,
        cfg.trainer.devices,
        cfg.trainer.num_nodes,
    )
    check_steps(policy.schedule, policy.make_optimizer)
    check_refill(cfg.rollout.refill, policy)
    dtypes = {cfg.trainer.precision, cfg.policy.dtype, cfg.engine_dtype}
    check_loss(policy.loss, dtypes, cfg.rollout.max_new_tokens)
    datamodule.try_out()
    policy.run["inputs"] = inputs.found(CODE, policy.run["config"], cfg.policy.path)
    others = [f"{path}: {shown(before)} → {shown(now)}" for path, before, now in differing]
    if checkpoint is not None:
        others += since(checkpoint, policy.run["inputs"])
        if read_manifest(checkpoint).order.step == cfg.steps:
            datamodule.notes.append(f"all {cfg.steps} steps are done: the results are written anew; steps=N goes on")
    again = (folder / "run.json").exists()
    joining = cfg.ckpt_path is not None or not first
    before = contents(folder)
    check_folder(folder, joining)
    process.silent = not first
    for name in places.keys() - resumed.keys():
        places[name].mkdir(parents=True, exist_ok=True)
        unlocked.append(held.enter_context(sole_user(places[name], name)))
    if not joining:  # a run that ends before its first step leaves nothing behind
        owns(folder, before)
    at_once("stopped; the checkpoint is as it was" if checkpoint else "stopped; nothing has been trained")
    if first and policy.baseline.warning:
        print_warning(policy.baseline.warning)
    busy("preparing the run")

    with held, quiet_terminal(log_file(folder, rank)):
        L.seed_everything(cfg.seed)
        if first:
            number = next_number(Path(cfg.paths.runs).parent, folder)
            noted = {"number": number, "seed": cfg.seed, "told": own_settings(told), "method": in_words(policy)}
            noted["inputs"] = policy.run["inputs"]
            if not again:
                write_record(folder, CODE, as_yaml(kept), **noted)
            rich.print(changes_table(changed(told, "train")))
            say(*datamodule.notes, *filter(None, unlocked))
        trainer = build_trainer(cfg)
        datamodule.weights, datamodule.clock = policy.weights, policy.clock
        datamodule.greedy, datamodule.again = policy.baseline.needs_greedy, policy.drops.asks_again
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]

        def begun(trainer: L.Trainer, done: int) -> None:
            resumed = {"after": done, "checkpoint": str(checkpoint or ""), "changed": others}
            write_record(folder, CODE, as_yaml(kept), **noted, resumed=resumed)
            if checkpoint is not None:
                lines = others or ["nothing is another than when the checkpoint was made"]
                show(trainer, RESUMED, Rows((f"resumed after step {done}",), [(line,) for line in lines]))

        if again:
            callbacks.insert(0, GoingOn(begun))
        stop = next((callback for callback in callbacks if isinstance(callback, Graceful)), None)
        if stop is None:  # nobody says when a step has been taken
            owns(None)
            at_once("stopped")
        process.endings = [lambda: requeue(process.received)]
        for own in callbacks:
            if first and isinstance(own, Checkpoint) and hasattr(own, "attempt"):
                own.attempt = number
        typed, sys.argv = sys.argv, masked_overrides(sys.argv)  # loggers note it, too
        named = compared(kept) | {GOVERNED: policy.schedule.words}
        for logger in trainer.loggers:
            logger.log_hyperparams(dict(named))
        sys.argv = typed
        os.environ |= {RUN_FOLDER: str(folder), RUN_PROCESS: str(os.getpid())}
        if checkpoint is not None:
            say(f"resuming    {checkpoint}")
            say(*(f"changed     {line}" for line in others))
        with watched(lambda: getattr(trainer.strategy.launcher, "procs", []), folder):
            trainer.fit(policy, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
        del os.environ[RUN_FOLDER], os.environ[RUN_PROCESS]
        if stop is not None and stop.received is not None:
            if first:
                say(f"stopped after step {trainer.current_epoch}; go on with ckpt_path=last")
            requeue(stop.received)
            sys.exit(128 + stop.received if first else 0)  # one rank speaks for all
        busy("writing the policy and the report")
        policy.scorer.export(tokenizer, folder / "policy", policy.compute_dtype)
        if first:
            say(f"policy      {folder / 'policy'}")
            write_finished(folder, steps=trainer.current_epoch, metrics=outcome(folder))
            say(f"report      {whereabouts(write_report(folder, [read_run(folder)]))}")
    at_once("stopped; the run was complete", status=0)


def folders_of(cfg: DictConfig) -> dict[str, Path]:
    """The folders in which a run writes and deletes, each once, by the setting that names it."""
    found = {"paths.output_dir": Path(cfg.paths.output_dir)}
    if saving := OmegaConf.select(cfg, "callbacks.checkpoints.dirpath"):
        found["callbacks.checkpoints.dirpath"] = Path(saving)
    once = {place.resolve(): setting for setting, place in reversed(found.items())}
    return {setting: place for place, setting in once.items()}


def make_policy(cfg: DictConfig, own: dict[str, Any], told: dict[str, Any], kept: dict[str, Any]) -> PolicyModule:
    """The policy, whose checkpoints will say what the run was made with; ``own`` tells it from others.

    Args:
        told, kept: ``cfg`` with its references, and as it is written down.
    """
    own_copy = copy.deepcopy(cfg)  # Hydra puts values in place of what refers to them
    policy: PolicyModule = hydra.utils.instantiate(own_copy.policy, _convert_="all")
    overrides = masked_overrides(overrides_told())
    policy.identity, policy.run = own, {"overrides": overrides, "told": told, "config": kept}
    return policy


def since(checkpoint: Path, now: inputs.Inputs) -> list[str]:
    """A line for each difference to when the checkpoint was made: of data, reward, code, policy and packages."""
    before = meta(checkpoint)["oblr"]["run"].get("inputs")
    return ["data, reward and code: the checkpoint does not say"] if before is None else inputs.changed(before, now)


def compared(kept: dict[str, Any]) -> dict[str, Any]:
    """The settings by which runs of a sweep are told apart: a part of the method is called as its option is."""
    sections = {name: kept[name] for name in COMPARED if name in kept}
    options = {name: choice for name, choice in HydraConfig.get().runtime.choices.items() if name in COMPARED}
    for path, value in leaves(sections):
        told = path != "optimizer.lr" and not path.rpartition(".")[2].startswith("_")  # the schedule sets that rate
        if told and path not in options:
            options[path] = value if isinstance(value, float | int) else str(value)
    return options


def build_trainer(cfg: DictConfig) -> L.Trainer:
    callbacks = hydra.utils.instantiate(cfg.callbacks, _convert_="all")
    loggers: list[Logger] = [RunRecord(cfg.paths.output_dir)]
    if cfg.logger:
        loggers.append(hydra.utils.instantiate(cfg.logger, _convert_="all"))
    return hydra.utils.instantiate(
        cfg.trainer, callbacks=list(callbacks.values()), logger=loggers, plugins=[started_by(cfg)], _convert_="all"
    )


def started_by(cfg: DictConfig) -> ClusterEnvironment:
    """Whom Lightning asks about the other processes of the run: it would guess from variables that mean nothing."""
    world = None if RUN_PROCESS in os.environ else find_world(os.environ, *processes(cfg))
    if world == "srun":
        return SLURMEnvironment(auto_requeue=False)  # GracefulStop does, after the step; it would in the midst of one
    elastic = world == "torchrun" and TorchElasticEnvironment.detect()
    return TorchElasticEnvironment() if elastic else LightningEnvironment()
