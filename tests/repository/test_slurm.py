"""The sbatch files on a real SLURM of one node: an FSDP2 job, one that is preempted, and an array sweep.

They run in a copy of the checkout, one after another on two cores, as SLURM schedules them.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from safetensors.torch import load_file
from slurm_cluster import checkout, cluster, installation, said, wait_for

from oblr.record.curves import read_curves

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1200)]  # eleven runs, where other programs may be at work
STEPS = 6
SMALL = ("rollout.engine=hf", "rollout.prompts_per_step=2", "rollout.group_size=4", "data.held_out.size=8")
CPU = ("--gpus-per-node=0", "--cpus-per-task=1", "--time=60")
FSDP = (
    "experiment=pocket",
    "trainer=fsdp",
    "trainer.accelerator=cpu",
    "~callbacks.evaluation",
    f"steps={STEPS}",
    *SMALL,
)
SWEEP = ("experiment=sweep", "seed=1,2,3", "baseline=rloo,opo", "schedule=snr", "steps=2", *SMALL)
NAMES = [f"seed{seed}-{baseline}" for seed in (1, 2, 3) for baseline in ("rloo", "opo")]
BROKEN = 3


@pytest.fixture(scope="module")
def slurm():
    with cluster(installation(ROOT / ".cache")) as private:
        yield private


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("slurm") / "clone")


def summary(run: Path) -> Path:
    return run / "summary.png"


@pytest.fixture(scope="module")
def jobs(slurm, clone):
    """What became of the jobs ``preempted``, ``whole`` and ``sweep``, and where the former two lie."""
    runs = clone / "runs" / "slurm"
    two_tasks = (*CPU, "--ntasks-per-node=2")
    fsdp = (*FSDP, "callbacks.progress.every=1")
    preempted = slurm.submit("slurm/train.sbatch", *fsdp, cwd=clone, options=two_tasks)
    whole = slurm.submit("slurm/train.sbatch", *fsdp, cwd=clone, options=two_tasks)
    summary(clone / "runs" / "sweep" / NAMES[BROKEN]).mkdir(parents=True)  # that run cannot draw
    options = (*CPU, f"--array=0-{len(NAMES) - 1}")
    sweep = slurm.submit("slurm/sweep.sbatch", *SWEEP, cwd=clone, options=options)

    wait_for(lambda: "step 2/" in said(runs / preempted), "the first job does not reach its second step")
    slurm("scancel", "--signal=USR1", preempted)
    wait_for((runs / whole / "code").exists, "the second job does not start")
    script = clone / "src" / "train.py"
    good = script.read_text()
    script.write_text("raise SystemExit('this edit came after the job')")
    wait_for((runs / preempted / "run-2.json").exists, "the preempted job does not start again")
    script.write_text(good)
    return {
        "preempted": (slurm.wait(preempted), runs / preempted),
        "whole": (slurm.wait(whole), runs / whole),
        "sweep": (slurm.wait(sweep), clone / "runs" / "sweep"),
    }


def test_an_fsdp_job_runs_in_two_tasks(jobs):
    ((job,), run) = jobs["whole"]
    assert (job["JobState"], job["ExitCode"], job["NumTasks"]) == ("COMPLETED", "0:0", "2"), said(run)
    assert (run / "train-rank1.log").exists()
    assert read_curves(run)["train/lr"][0] == list(range(1, STEPS + 1))
    assert f"step {STEPS}/{STEPS}" in said(run)


def test_a_preempted_job_ends_with_the_same_bits(jobs):
    ((job,), run), (_, whole) = jobs["preempted"], jobs["whole"]
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("COMPLETED", "0:0", "1"), said(run)
    assert json.loads((run / "finished.json").read_text())["steps"] == STEPS
    expected, found = (load_file(folder / "policy" / "model.safetensors") for folder in (whole, run))
    assert found.keys() == expected.keys()
    assert all((found[name] == weight).all() for name, weight in expected.items())
    steps = [int(step) for step in re.findall(rf"step (\d+)/{STEPS}", said(run))]
    assert steps == list(range(1, STEPS + 1))  # none was taken twice


def test_a_job_runs_the_code_that_it_was_started_with(jobs, clone):
    """``train.py`` was another when the preempted job started again."""
    head = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    _, run = jobs["preempted"]
    assert json.loads((run / "run.json").read_text())["revision"] == head
    again = json.loads((run / "run-2.json").read_text())
    assert again["revision"] == head
    assert again["command"][0] == str(run / "code" / "src" / "train.py")
    assert "engine: hf" in (run / "code" / "config.yaml").read_text()


def test_a_sweep_runs_as_an_array(jobs):
    tasks, folder = jobs["sweep"]
    states = [task["JobState"] for task in tasks]
    assert states == ["FAILED" if k == BROKEN else "COMPLETED" for k in range(len(NAMES))], said(folder / NAMES[0])
    for name, task in zip(NAMES, tasks, strict=True):
        seed, baseline = re.fullmatch(r"seed(\d)-(\w+)", name).groups()
        config = (folder / name / "config.yaml").read_text()
        assert f"\nseed: {seed}\n" in config
        assert f"oblr.baselines.{baseline}." in config
        assert f"task {task['ArrayTaskId']}: seed={seed} baseline={baseline}" in said(folder / name)
    table = json.loads((folder / "table.json").read_text())
    assert [(row["varied"], row["finished"]) for row in table["rows"]] == [
        ({"baseline": "rloo"}, 3),
        ({"baseline": "opo"}, 2),
    ]
    assert [(task["task"], task["status"]) for task in table["missing"]] == [(BROKEN, "unfinished")]
    assert "IsADirectoryError" in said(folder / NAMES[BROKEN])


def test_only_what_slurm_has_to_say_is_left_in_the_checkout(jobs, clone):
    ((preempted,), _), (sweep, _) = jobs["preempted"], jobs["sweep"]
    words = {path.name: path.read_text() for path in clone.glob("slurm-*.out")}
    requeue, failure = f"slurm-{preempted['JobId']}.out", f"slurm-{sweep[0]['ArrayJobId']}_{BROKEN}.out"
    assert words.keys() == {requeue, failure}
    assert "DUE TO JOB REQUEUE" in words[requeue]
    assert "exit code 1" in words[failure]


def test_the_rest_of_a_sweep_runs_without_slurm(jobs, clone):
    _, folder = jobs["sweep"]
    summary(folder / NAMES[BROKEN]).rmdir()
    written = {path: path.stat().st_mtime_ns for path in folder.glob("*/finished.json")}
    assert len(written) == len(NAMES) - 1
    command = [".venv/bin/python", "src/sweep.py", *SWEEP]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^task (\d)", done.stdout, flags=re.MULTILINE) == [str(BROKEN)]
    assert {path: path.stat().st_mtime_ns for path in written} == written
    text = (folder / "table.md").read_text()
    assert text in done.stdout
    assert "Not finished" not in text
    for baseline in ("rloo", "opo"):
        assert re.search(rf"^\| {baseline} \| 3 \|( [\d.]+ \[[\d.]+, [\d.]+\] \|){{3}}$", text, flags=re.MULTILINE)
