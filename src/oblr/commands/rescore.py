"""Score the responses of an earlier evaluation by another reward: no model, no engine."""

import copy
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import hydra
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oblr.commands.checks import check_folder
from oblr.commands.foreign import check_foreign
from oblr.commands.resume import told
from oblr.commands.written import as_yaml, written
from oblr.errors import SettingError, why
from oblr.evaluation.attempts import Attempts, Benchmark
from oblr.evaluation.measures import groups
from oblr.evaluation.records import Record, digest, finished, saved, write_table
from oblr.evaluation.rescoring import rejudge
from oblr.problem import Problem, UnsavedTokens
from oblr.report.evaluations import evaluations, write_evaluation
from oblr.report.page import whereabouts
from oblr.run.lock import sole_user
from oblr.run.paths import CODE
from oblr.run.progress import shown
from oblr.run.provenance import in_order, revision, write_record
from oblr.run.stopping import at_once, contents, owns
from oblr.run.terminal import busy, quiet_terminal, say


def rescore(cfg: DictConfig) -> None:
    """Every finished benchmark of the folder ``cfg.rescore``, with ``cfg.reward``, into another folder."""
    busy("reading what was said")
    source, folder = Path(cfg.rescore), Path(cfg.paths.output_dir)
    if not source.is_dir():
        raise SettingError("rescore", f"there is no folder {source}", "give one that eval.py has written")
    summaries = finished(source)
    if not summaries:
        raise SettingError("rescore", f"{source} has no finished benchmark", "finish it, or give one of its folders")
    reward, sampled = OmegaConf.to_container(cfg.reward, resolve=True), benchmarks(source)
    if unknown := summaries.keys() - sampled.keys():
        raise SettingError("rescore", f"{source} has no config.yaml of {', '.join(unknown)}", "sample anew")
    theirs = {name: {key: own for key, own in sampled[name].items() if key != "reward"} for name in summaries}
    check_foreign({"benchmarks": theirs}, told(), "rescore", source)
    cfg.benchmarks = {name: own | {"reward": reward} for name, own in theirs.items()}
    parts, notes = [], list[str]()
    for name, benchmark in hydra.utils.instantiate(copy.deepcopy(cfg).benchmarks, _convert_="all").items():
        problems, attempts = answered(source / f"{name}.jsonl", benchmark, summaries[name]["settings"])
        notes += benchmark.try_out(problems, name, lambda text: UnsavedTokens(len(text)))
        parts.append((name, benchmark, problems, attempts))
    columns = groups({name: problems for name, _, problems, _ in parts}, cfg.by)
    before, begun = contents(folder), any(folder.glob("*.jsonl"))
    check_folder(folder, joining=begun)
    if not begun:
        owns(folder, before)
    with sole_user(folder):
        ours = {"reward": written(cfg)["reward"], "rescored": revision(CODE)}
        records = {name: Record(folder, name, summaries[name]["settings"] | ours) for name in summaries}
        say(f"folder      {folder}")
        at_once(f"stopped; go on with paths.output_dir={folder}")
        total = sum(len(one.responses) for *_, attempts in parts for one in attempts)
        done = sum(len(one.responses) for record in records.values() for one in record.attempts)
        say(*notes)
        with quiet_terminal(folder / "eval.log"), shown(total, done) as display:
            write_record(folder, CODE, as_yaml(written(cfg)), seed=cfg.seed)
            for name, benchmark, problems, attempts in parts:
                display.phase(name)
                record = records[name]
                record.begin()
                with closing(benchmark.pool):
                    for start in range(len(record.attempts), len(problems), record.settings["chunk"]):
                        chunk = slice(start, start + record.settings["chunk"])
                        record.add(rejudge(benchmark, problems[chunk], attempts[chunk]))
                        owns(None)
                        display.advance(sum(len(one.responses) for one in attempts[chunk]))
                        display.line()
                benchmark.tell_failures(name)
                record.finish(summaries[name]["k"], columns[name])
        say(*write_table(folder).splitlines())
        say(f"report      {whereabouts(write_evaluation(folder, evaluations(folder)))}")


def benchmarks(source: Path) -> dict[str, Any]:
    """The benchmarks that an evaluation had, as its configurations describe them; the last one counts.

    Raises:
        SettingError: one is no plain YAML, or describes none.
    """
    found: dict[str, Any] = {}
    for path in in_order(source, "config*.yaml"):
        try:
            described = OmegaConf.to_container(OmegaConf.load(path))
        except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError, RecursionError) as error:
            raise SettingError("rescore", f"{path} is no plain YAML: {why(error)}", "sample anew") from error
        own = described.get("benchmarks") if isinstance(described, dict) else None
        if not isinstance(own, dict) or not all(isinstance(one, dict) for one in own.values()):
            raise SettingError("rescore", f"{path} describes no benchmarks", "give the folder of an evaluation")
        found |= cast(dict[str, Any], own)
    return found


def answered(rows: Path, benchmark: Benchmark, settings: dict[str, Any]) -> tuple[list[Problem], list[Attempts]]:
    """The problems that were answered, and what was said to each.

    Raises:
        SettingError: they have changed since.
    """
    attempts = saved(rows)
    everything = (benchmark.problems[i] for i in range(len(benchmark.problems)))
    problems = [problem for problem in everything if problem.id in attempts]
    if digest(problems) != settings["digest"]:
        raise SettingError(
            "rescore", f"{rows} answers other problems than there are now", "restore those, or sample anew"
        )
    return problems, [attempts[problem.id] for problem in problems]
