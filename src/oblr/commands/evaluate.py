"""``src/eval.py``: evaluate a model."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import hydra
import rich
import torch
from omegaconf import DictConfig, OmegaConf
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from oblr.checks import check_engine, check_folder
from oblr.commands.launch import ROOT
from oblr.errors import SettingError
from oblr.evaluation.attempts import Benchmark, attempt, check_tries, longest
from oblr.evaluation.records import Record, compare, digest, write_table
from oblr.policy.model import load_config, load_tokenizer, stored_weights, weights_digest
from oblr.rewards.base import try_out
from oblr.rollout.engine import Engine, choose
from oblr.run.provenance import revision, versions, write_record
from oblr.run.terminal import quiet_terminal
from oblr.types import Problem, Sampling


@dataclass
class Task:
    """A benchmark and what has been done of it."""

    name: str
    benchmark: Benchmark
    problems: list[Problem]
    sampling: Sampling
    record: Record


def main(cfg: DictConfig) -> None:
    if cfg.compare is not None:
        return print(compare(*two_folders(cfg.compare)), end="")
    # Whatever can be found wrong is found here: nothing has been loaded or written yet.
    check_together(cfg)
    cfg.model = newest_policy(Path(cfg.paths.runs)) if cfg.model == "last" else cfg.model
    config, tokenizer = load_config(cfg.model, "model"), load_tokenizer(cfg.model, "model")
    check_engine(config, cfg.rollout.engine, cfg.rollout.engines)
    folder = Path(cfg.paths.output_dir)
    tasks = prepare(cfg, config, tokenizer, folder)
    context = getattr(config, "max_position_embeddings", None)
    cfg.rollout.max_model_len = max(
        longest(task.name, task.problems, tokenizer, task.sampling.max_new_tokens, context) for task in tasks
    )
    engine = choose(cfg.rollout.engine, hydra.utils.instantiate(cfg.rollout.engines, _convert_="all"))
    weights = stored_weights(cfg.model, "model")
    check_folder(folder, joining=any(folder.glob("*.jsonl")))

    if any(not task.record.complete for task in tasks):
        rich.print(f"folder      {folder}")
        with quiet_terminal(folder / "eval.log"):
            for task in tasks:
                task.record.begin()
            write_record(folder, ROOT, OmegaConf.to_yaml(cfg, resolve=True), seed=cfg.seed)
            try:
                sample(tasks, engine, weights, tokenizer, cfg)
            except KeyboardInterrupt:
                rich.print(f"stopped; go on with paths.output_dir={folder}")
                sys.exit(130)
    for task in tasks:
        task.record.finish(cfg.k)
    print(write_table(folder), end="")


def check_together(cfg: DictConfig) -> None:
    """Raises SettingError where some cannot work together, whatever model and benchmarks are."""
    if cfg.model is None:
        raise SettingError("model", "none is given", "give a Hugging Face folder, a hub id, or last")
    if not cfg.get("benchmarks"):
        raise SettingError("benchmarks", "none is given", "give some, such as benchmarks=[chain_sum]")
    check_tries(cfg.samples, cfg.k, cfg.limit)
    if cfg.temperature == 0 and cfg.samples > 1:
        raise SettingError("samples", "greedy responses to a problem are all the same", "use 1 with temperature=0")


def newest_policy(runs: Path) -> str:
    exported = list(runs.rglob("policy/config.json"))
    if not exported:
        raise SettingError("model", f"no run below {runs} has exported a policy", "give a folder or a hub id")
    return str(max(exported, key=lambda path: path.stat().st_mtime_ns).parent)


def two_folders(compared: object) -> tuple[Path, Path]:
    if not OmegaConf.is_list(compared) or len(compared) != 2:  # type: ignore[arg-type]
        raise SettingError("compare", f"{compared} are not two folders", "use compare=[A,B]")
    return Path(compared[0]), Path(compared[1])  # type: ignore[index]


def prepare(cfg: DictConfig, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, folder: Path) -> list[Task]:
    """Every benchmark with its problems and what the folder has of it."""
    common = {
        "model": cfg.model,
        "weights": weights_digest(cfg.model, config),
        "engine": cfg.rollout.engine,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        **{name: cfg[name] for name in ("dtype", "temperature", "samples", "seed", "chunk")},
        "revision": revision(ROOT),
        "versions": versions(),
    }
    tasks = []
    for name, benchmark in hydra.utils.instantiate(cfg.benchmarks, _convert_="all").items():
        problems = benchmark.first(cfg.limit)
        try_out(benchmark.reward, problems[0], tokenizer.encode(problems[0].answer))
        settings = common | {
            "max_new_tokens": benchmark.max_new_tokens,
            "problems": len(problems),
            "digest": digest(problems),
            "reward": OmegaConf.to_container(cfg.benchmarks[name].reward, resolve=True),
        }
        sampling = Sampling(cfg.samples, cfg.temperature, benchmark.max_new_tokens, (tokenizer.eos_token_id,))
        tasks.append(Task(name, benchmark, problems, sampling, Record(folder, name, settings)))
    return tasks


def sample(
    tasks: list[Task],
    engine: Engine,
    weights: Iterable[tuple[str, torch.Tensor]],
    tokenizer: PreTrainedTokenizerBase,
    cfg: DictConfig,
) -> None:
    """Do what is left of each benchmark with these weights."""
    try:
        for task in tasks:
            task.benchmark.pool.start()
        engine.start()
        engine.sync(weights, 0)
        for task in tasks:
            for start in range(len(task.record.attempts), len(task.problems), cfg.chunk):
                chunk = task.problems[start : start + cfg.chunk]
                task.record.add(attempt(task.benchmark, chunk, engine.generate, tokenizer, task.sampling, cfg.seed))
                rich.print(f"{task.name:11} {len(task.record.attempts)} of {len(task.problems)}")
            pool = task.benchmark.pool
            if pool.timeouts or pool.errors:
                rich.print(f"{task.name:11} scored 0: {pool.timeouts} that took too long, {pool.errors} that failed")
    finally:
        engine.close()
        for task in tasks:
            task.benchmark.pool.close()
