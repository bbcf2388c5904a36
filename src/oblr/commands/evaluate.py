"""``src/eval.py``: evaluate models, score what they have said anew, or compare two evaluations."""

import copy
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from oblr.batch.types import Sampling
from oblr.commands.checks import check_engine, check_folder, check_model, check_served, runs_vllm
from oblr.commands.rescore import rescore
from oblr.commands.written import as_yaml, written
from oblr.data.ends import check_stop, end_tokens
from oblr.errors import SettingError
from oblr.evaluation.attempts import Benchmark, attempt, longest, new_tokens
from oblr.evaluation.measures import groups
from oblr.evaluation.records import Record, compare, digest, write_table
from oblr.policy.loading import check_numbers, load_config, load_tokenizer, stored_weights, weights_digest
from oblr.policy.positions import context_of
from oblr.problem import Problem
from oblr.report.evaluations import write_evaluation
from oblr.report.page import whereabouts
from oblr.rollout.engine import Engine, choose
from oblr.rollout.replies import ask
from oblr.run.host import check_installed
from oblr.run.lock import sole_user
from oblr.run.paths import CODE
from oblr.run.progress import Display, shown
from oblr.run.provenance import number_of, revision, versions, write_record
from oblr.run.stopping import at_once, contents, owns
from oblr.run.terminal import busy, quiet_terminal, say


@dataclass
class Task:
    """A benchmark, all that its figures depend on, and what has been done of it, once the folder is ours."""

    name: str
    benchmark: Benchmark
    problems: list[Problem]
    sampling: Sampling
    settings: dict[str, Any]
    groups: dict[str, list[Any]]
    record: Record = field(init=False)


@dataclass
class Evaluation:
    """Of one model."""

    cfg: DictConfig
    tasks: list[Task]
    notes: list[str]
    tokenizer: PreTrainedTokenizerBase
    vocabulary: int
    engine: Engine
    weights: Iterable[tuple[str, torch.Tensor]]

    @property
    def folder(self) -> Path:
        return Path(self.cfg.paths.output_dir)


def main(cfg: DictConfig) -> None:
    if cfg.compare is not None:
        return say(*compare(*map(Path, cfg.compare)).splitlines())
    if cfg.rescore is not None:
        return rescore(cfg)
    busy("checking settings and data")
    # Whatever can be found wrong is found here: nothing has been loaded or written yet.
    vllm = runs_vllm(cfg.rollout.engine, cfg.rollout.engines)
    check_installed(vllm, triton=vllm)
    models, folder = chosen(cfg), Path(cfg.paths.output_dir)
    places = {model: folder / model.strip("/").replace("/", "--") for model in models} if len(models) > 1 else None
    evaluations = [prepare(cfg, model, places[model] if places else folder) for model in models]
    notes = [note for one in evaluations for note in one.notes]
    before = contents(folder)
    with ExitStack() as locks:
        for evaluation in sorted(evaluations, key=lambda one: not one.folder.exists()):  # what is there may refuse
            check_folder(evaluation.folder, joining=any(evaluation.folder.glob("*.jsonl")))
            locks.enter_context(sole_user(evaluation.folder))
            for task in evaluation.tasks:
                task.record = Record(evaluation.folder, task.name, task.settings)
        if not any(task.record.attempts for evaluation in evaluations for task in evaluation.tasks):
            owns(folder, before)
        if not all(task.record.complete for evaluation in evaluations for task in evaluation.tasks):
            say(*dict.fromkeys(notes))  # models share them
        sample_all(evaluations, folder)
        for evaluation in evaluations:
            for task in evaluation.tasks:
                task.record.finish(cfg.k, task.groups)
        say(*write_table(folder, places).splitlines())
        say(f"report      {whereabouts(write_evaluation(folder, places or {models[0]: folder}))}")


def chosen(cfg: DictConfig) -> list[str]:
    """The models to evaluate, each once."""
    given = [cfg.model] if isinstance(cfg.model, str) else list(cfg.model)
    models = [newest_policy(Path(cfg.paths.runs)) if model == "last" else model for model in given]
    if len(set(models)) < len(models):
        raise SettingError("model", f"{', '.join(models)}: one is given twice", "give each once")
    return models


def newest_policy(runs: Path) -> str:
    exported = list(runs.rglob("policy/config.json"))
    if not exported:
        raise SettingError("model", f"no run below {runs} has exported a policy", "give a folder or a hub id")

    def place(config: Path) -> tuple[int, int]:  # runs of earlier versions have no number
        number = number_of(config.parent.parent)
        return number, 0 if number else config.stat().st_mtime_ns

    return str(max(exported, key=place).parent)


def prepare(asked: DictConfig, model: str, folder: Path) -> Evaluation:
    """All that an evaluation of this model in this folder takes, with nothing large loaded."""
    cfg = copy.deepcopy(asked)
    cfg.model, cfg.paths.output_dir = model, str(folder)
    config, tokenizer = load_config(model, "model"), load_tokenizer(model, "model")
    check_engine(config, cfg.rollout.engine, cfg.rollout.engines)
    vocabulary = check_model(model, config, tokenizer, "model", by_name=True)
    check_served(model, config, cfg.rollout.engine, cfg.rollout.engines)
    check_numbers(model, "model")
    ends = list(end_tokens(model, tokenizer, "model"))
    check_stop("stop", cfg.stop, tokenizer)
    common = {
        "model": model,
        "weights": weights_digest(model, config, "model"),
        "engine": cfg.rollout.engine,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        **{name: cfg[name] for name in ("dtype", "temperature", "samples", "seed", "chunk", "top_p", "top_k", "min_p")},
        "stop": list(cfg.stop),
        "end_tokens": ends,
        "revision": revision(CODE),
        "versions": versions(),
    }
    own = copy.deepcopy(cfg)  # Hydra puts values in place of what refers to them
    benchmarks = hydra.utils.instantiate(own.benchmarks, _convert_="all")
    for benchmark in benchmarks.values():
        benchmark.pool.start()
    judged = {name: benchmark.judged(cfg.limit) for name, benchmark in benchmarks.items()}
    firsts = {name: problems for name, (problems, _) in judged.items()}
    tasks, columns, notes = [], groups(firsts, cfg.by), list[str]()
    context = context_of(config)
    for name, problems in firsts.items():
        benchmark = benchmarks[name]
        notes += benchmark.try_out(problems, name, tokenizer.encode)
        benchmark.pool.close()  # there may be many models
        most = new_tokens(benchmark, problems, tokenizer, context)
        settings = common | {
            "max_new_tokens": most,
            "problems": len(problems),
            "left_out": judged[name][1],
            "digest": digest(problems),
            "reward": written(cfg)["benchmarks"][name]["reward"],
        }
        sampling = Sampling(
            cfg.samples,
            cfg.temperature,
            most,
            tuple(ends),
            cfg.top_p,
            cfg.top_k,
            cfg.min_p,
            tuple(cfg.stop),
        )
        tasks.append(Task(name, benchmark, problems, sampling, settings, columns[name]))
    cfg.rollout.max_model_len = max(
        longest(task.name, task.problems, tokenizer, task.sampling.max_new_tokens, context, vocabulary)
        for task in tasks
    )
    engine = choose(cfg.rollout.engine, hydra.utils.instantiate(copy.deepcopy(cfg).rollout.engines, _convert_="all"))
    return Evaluation(cfg, tasks, notes, tokenizer, vocabulary, engine, stored_weights(model, "model"))


def sample_all(evaluations: list[Evaluation], folder: Path) -> None:
    """Do what is left of each."""
    tasks = [task for evaluation in evaluations for task in evaluation.tasks]
    if all(task.record.complete for task in tasks):
        return
    say(f"folder      {folder}")
    at_once(f"stopped; go on with paths.output_dir={folder}")
    total, done = (sum(map(len, lists)) for lists in ([t.problems for t in tasks], [t.record.attempts for t in tasks]))
    samples = tasks[0].sampling.n
    with quiet_terminal(folder / "eval.log"), shown(total * samples, done * samples) as display:
        for evaluation in evaluations:
            if all(task.record.complete for task in evaluation.tasks):
                continue
            for task in evaluation.tasks:
                task.record.begin()
            cfg = evaluation.cfg
            write_record(evaluation.folder, CODE, as_yaml(written(cfg)), seed=cfg.seed)
            sample(evaluation, display)


def sample(evaluation: Evaluation, display: Display) -> None:
    """Do what is left of each benchmark with this model's weights."""
    engine, cfg = evaluation.engine, evaluation.cfg
    try:
        for task in evaluation.tasks:
            task.benchmark.pool.start()
        display.phase("loading engine", sampling=False)
        engine.start()
        engine.sync(evaluation.weights, 0)
        generate = partial(ask, engine, vocabulary=evaluation.vocabulary, done=lambda *_: display.advance(1))
        for task in evaluation.tasks:
            display.phase(task.name)
            for start in range(len(task.record.attempts), len(task.problems), cfg.chunk):
                chunk = task.problems[start : start + cfg.chunk]
                attempts = attempt(task.benchmark, chunk, generate, evaluation.tokenizer, task.sampling, cfg.seed)
                task.record.add(attempts)
                owns(None)
                display.line()
            task.benchmark.tell_failures(task.name)
    finally:
        engine.close()
        for task in evaluation.tasks:
            task.benchmark.pool.close()
