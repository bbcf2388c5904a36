"""A sweep's tasks are Hydra's own, its table tells what is missing, and it goes on after a failure."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import warm
import yaml
from cases import wide
from conftest import ROOT, run_script

from oblr.commands import sweep
from oblr.commands.compose import RUN_FOLDER
from oblr.commands.launch import one_line_errors
from oblr.errors import SettingError
from oblr.run.provenance import revision, snapshot, write_finished
from oblr.run.sweeps import write_table

SWEEP = ("experiment=sweep", "baseline=rloo,opo", "schedule=snr", "seed=1,2")


@pytest.fixture
def compose(tmp_path):
    """The tasks of a sweep with its folder in ``tmp_path``."""
    return lambda *overrides: sweep.compose_tasks([*overrides, f"paths.runs={tmp_path}"])[1]


def finish(task, accuracy, **config):
    """What a finished run leaves behind, as far as a sweep reads it."""
    task.folder.mkdir(parents=True)
    (task.folder / "run.json").write_text("{}")
    (task.folder / "config.yaml").write_text(yaml.safe_dump(task.config | config))
    write_finished(
        task.folder, steps=24, metrics={"eval/sampled_accuracy": accuracy, "eval/sampled_area": accuracy / 2}
    )


def test_the_default_sweep_is_the_array_of_the_sbatch_file(compose):
    tasks = compose("experiment=sweep")
    baselines, schedules = ("gradient_weighted", "rloo", "group_mean_std"), ("noise_linear", "snr", "constant")
    expected = [
        {"seed": str(seed), "baseline": baseline, "schedule": schedule}
        for seed, baseline, schedule in itertools.product((1, 2, 3), baselines, schedules)
    ]
    assert [task.varied for task in tasks] == expected
    assert [task.number for task in tasks] == list(range(27))
    assert "#SBATCH --array=0-26\n" in (ROOT / "slurm" / "sweep.sbatch").read_text()
    assert all({f"{name}={value}" for name, value in task.varied.items()} < set(task.overrides) for task in tasks)
    assert tasks[8].config["baseline"]["_target_"].endswith("GroupMeanStdBaseline")
    assert RUN_FOLDER not in os.environ


def test_every_task_has_a_folder_of_its_own_at_any_moment(compose, tmp_path):
    """Names come of what is swept, not of the time; new sweeps need no experiment file."""
    tasks = compose("experiment=pocket", "optimizer=sgd,adamw", "rollout.group_size=4,8", "~callbacks.samples")
    assert [task.folder for task in tasks] == [
        tmp_path / f"{optimizer}-group_size{size}" for optimizer, size in itertools.product(("sgd", "adamw"), (4, 8))
    ]
    assert "samples" not in tasks[0].config["callbacks"]
    assert [task.folder for task in compose("experiment=seed_baseline")] == [
        tmp_path / "gradient_weighted-seed1",
        tmp_path / "rloo-seed1",
    ]


@pytest.mark.parametrize(
    ("overrides", "setting", "words"),
    [
        (["experiment=pocket"], "hydra.sweeper.params", ["nothing is swept"]),
        (["experiment=sweep", "rollout.grop_size=4"], "", ["grop_size"]),
        (["experiment=sweep", "baseline=rloo,best"], "", ["baseline/best"]),
        (["experiment=pocket", "seed=shuffle(1,2)"], "seed", ["shuffled"]),
        (["experiment=seed_baseline", "eta0=1,2"], "paths.output_dir", ["tasks 0 and 1", "would share"]),
        ([*SWEEP, "--task", "4"], "--task", ["no task 4", "0 to 3"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_bad_input_is_one_line(overrides, setting, words, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["sweep.py", *overrides])
    with pytest.raises(SystemExit) as exit, one_line_errors():
        sweep.main()
    out, err = capfd.readouterr()
    assert exit.value.code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith(f"error: {setting}")
    assert all(word in err for word in words)


def test_the_table_is_over_seeds_and_names_what_is_missing(compose, tmp_path):
    tasks = compose(*SWEEP)
    assert "| rloo | 0 of 2 |  |  |  |" in write_table(tmp_path / "new", tasks)
    for task, accuracy in zip(tasks[:3], (0.2, 0.5, 0.4), strict=True):  # rloo 1, opo 1, rloo 2
        finish(task, accuracy)
    text = write_table(tmp_path, tasks)
    assert text == (tmp_path / "table.md").read_text()
    assert "| rloo | 2 | 30.0 [20.0, 40.0] | 15.0 [10.0, 20.0] |  |\n" in text
    assert "| opo | 1 of 2 | 50.0 | 25.0 |  |\n" in text
    assert text.endswith(f"- task 3: seed=2 baseline=opo: not started, {tasks[3].folder}\n")
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["rows"][0]["columns"]["final accuracy, %"] == pytest.approx({"mean": 30, "low": 20, "high": 40})
    assert [task["task"] for task in table["missing"]] == [3]


@pytest.mark.wide
def test_a_finished_run_with_other_settings_is_no_result_of_this_sweep(compose):
    finish(compose(*SWEEP)[0], 0.5)
    with pytest.raises(SettingError, match=r"^name: .*/seed1-rloo holds .*: steps=24 there, 3 here"):
        compose(*SWEEP, "steps=3")
    assert compose(*SWEEP, "paths.models=elsewhere", "policy.path=${paths.root}/models/pocket")[0].finished


@pytest.mark.wide
def test_settings_that_a_sweep_no_longer_has_make_another_run_of_it(compose):
    finish(compose(*SWEEP)[0], 0.5, removed=1)
    with pytest.raises(SettingError, match=r"holds a run with other settings: removed=1 there, None here"):
        compose(*SWEEP)


def test_only_what_has_written_its_last_file_is_finished(compose):
    task = compose(*SWEEP)[0]
    assert task.status == "not started"
    task.folder.mkdir(parents=True)
    (task.folder / "run.json").write_text("{}")
    assert (task.finished, task.status) == (False, "unfinished")
    write_finished(task.folder)
    assert (task.finished, task.status) == (True, "finished")


def test_a_run_without_curves_leaves_its_cells_empty(compose, tmp_path):
    tasks = compose(*SWEEP)
    for task in tasks:
        finish(task, 0.5)
    write_finished(tasks[1].folder, steps=24, metrics={})
    text = write_table(tmp_path, tasks)
    assert "| rloo | 2 | 50.0 [50.0, 50.0] | 25.0 [25.0, 25.0] |  |\n" in text
    assert "| opo | 2 |  |  |  |\n" in text


def test_finished_runs_are_not_run_again(compose, monkeypatch, capsys):
    tasks, ran = compose(*SWEEP), []
    for task in (tasks[0], tasks[2]):
        finish(task, 0.5)
    monkeypatch.setattr(sweep, "run", lambda task: ran.append(task) or 0)
    assert sweep.run_all(tasks) == []
    assert ran == [tasks[1], tasks[3]]
    assert "task 1: seed=1 baseline=opo (2 of 4)" in capsys.readouterr().out


@pytest.mark.parametrize("status", [128 + signal.SIGUSR1, *wide(128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGUSR1)])
def test_a_run_that_was_told_to_stop_ends_the_sweep(compose, monkeypatch, status):
    """SLURM's warning too: the machine is about to go, and the next run would be killed."""
    ran = []
    monkeypatch.setattr(sweep, "run", lambda task: ran.append(task) or status)
    with pytest.raises(SystemExit) as ended:
        sweep.run_all(compose(*SWEEP))
    assert ended.value.code == (status if status > 0 else 128 - status)
    assert len(ran) == 1


def test_a_task_of_an_array_becomes_its_run_or_is_finished(compose, monkeypatch, capsys):
    tasks, became = compose(*SWEEP), []
    monkeypatch.setattr(os, "execve", lambda *given: became.append(given))
    finish(tasks[2], 0.5)
    for number in (2, 3):
        task = sweep.pick(tasks, number)
        assert task is tasks[number]
        sweep.become(task, None)
    ((program, arguments, environment),) = became
    assert arguments[:2] == [program, str(ROOT / "src" / "train.py")]
    assert {"seed=2", "baseline=opo", "ckpt_path=auto"} < set(arguments)  # one that was interrupted goes on
    assert environment[RUN_FOLDER] == str(tasks[3].folder)
    assert "task 2: seed=2 baseline=rloo is finished in" in capsys.readouterr().out


STOPPED = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_a_job_that_is_told_to_end_tells_its_run(compose, monkeypatch, tmp_path):
    ready = tmp_path / "ready"
    monkeypatch.setattr(sweep, "command", lambda _: ([sys.executable, "-c", STOPPED, str(ready)], dict(os.environ)))

    def tell():
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell, daemon=True).start()
    assert sweep.run(compose(*SWEEP)[0]) == 7
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_failed_run_does_not_end_the_sweep_and_its_status_is_not_forgotten(tmp_path):
    overrides = (*SWEEP[:3], "seed=1", f"paths.runs={tmp_path}", "rollout.max_model_len=1000")
    result = run_script("sweep.py", *overrides)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error"] * 2 + ["failed"] * 2
    assert "Not finished: 2." in result.stdout


@pytest.mark.wide
def test_one_ctrl_c_ends_the_run_and_the_sweep(tmp_path):
    sweep = ["src/sweep.py", *SWEEP, "steps=500", "rollout.engine=hf", f"paths.runs={tmp_path}"]
    small = ["rollout.prompts_per_step=2", "rollout.group_size=2", "data.held_out.size=2", "callbacks.progress.every=1"]
    process = warm.popen()(
        [sys.executable, *sweep, *small],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    next(line for line in process.stdout if "step 2/500" in line)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    assert err == ""
    assert "the same command goes on" in out
    assert list((tmp_path / "seed1-rloo" / "checkpoints").glob("*.ckpt"))
    assert not (tmp_path / "seed1-rloo" / "finished.json").exists()
    assert not (tmp_path / "seed1-opo").exists()
    shown = warm.run([*sweep, *small, "--table"], ROOT, os.environ, timeout=300)
    assert shown.stdout.splitlines()[-1] == f"report      {tmp_path / 'report.html'}"
    assert "seed1-rloo" in (tmp_path / "report.html").read_text()


def test_a_snapshot_is_made_once_and_knows_its_revision(tmp_path):
    folder = tmp_path / "run" / "code"
    snapshot(ROOT, folder, "steps: 1\n")
    assert revision(folder) == revision(ROOT) != "unknown"
    assert (folder / "conf" / "train.yaml").read_text() == (ROOT / "conf" / "train.yaml").read_text()
    snapshot(ROOT, folder, "steps: 2\n")
    assert (folder / "config.yaml").read_text() == "steps: 1\n"
    assert [path.name for path in folder.parent.iterdir()] == ["code"]
