"""Launchers' variables, complete, left behind and contradictory: a run is all of a world, or none of it."""

import itertools
import os
import socket

import pytest
import warm
from conftest import ROOT, SMALL

from oblr.errors import SettingError
from oblr.run.launchers import INHERITED, PLACES, find_world

SRUN = {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "2"}


def srun(rank):
    return SRUN | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2), "SLURM_NODEID": str(rank // 2)}


def torchrun(rank, node="GROUP_RANK"):
    return {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), node: str(rank // 2)}


@pytest.mark.parametrize("rank", range(4))
def test_whole_worlds_are_honoured(rank):
    assert find_world(srun(rank) | {"PMI_RANK": str(rank), "PMI_SIZE": "4"}, 2, 2) == "srun"
    translated = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "MASTER_ADDR": "elsewhere"}
    assert find_world(srun(rank) | translated, 2, 2) == "srun"
    for node in ("GROUP_RANK", "NODE_RANK"):
        assert find_world(torchrun(rank, node), 2, 2) == "torchrun"
    agents = {"SLURM_PROCID": str(rank // 2), "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank // 2)}
    assert find_world(torchrun(rank) | agents, 2, 2) == "torchrun"  # one task a node, which is torchrun


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"},  # a shell in an allocation
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "0"},
        {"MASTER_ADDR": "127.0.0.1"},
    ],
)
@pytest.mark.parametrize("devices", [1, 2])
def test_who_is_alone_starts_the_others(environment, devices):
    assert find_world(environment, devices, 1) is None


def test_one_process_of_a_world_of_one():
    assert find_world({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, 1, 1) is None
    assert find_world({"RANK": "0"}, 1, 1) is None


@pytest.mark.parametrize("pair", PLACES, ids=lambda pair: pair[0])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_place_among_others_is_never_taken_for_a_run_of_its_own(pair, devices):
    """Whatever a launcher says of its four processes, none of them runs alone unless it is told in one line."""
    place, size = pair
    for rank, told in itertools.product(range(4), ({}, {size: "4"})):
        if rank == 0 and not told and (devices == 1 or place not in INHERITED):
            continue  # nothing says that there are others
        with pytest.raises(SettingError, match=rf"^trainer\.devices: .*{place}={rank}") as refused:
            find_world({place: str(rank)} | told, devices, 1)
        assert f"-u {place}" in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "devices", "nodes"),
    [
        ({"RANK": "one"}, 1, 1),
        ({"WORLD_SIZE": "4"}, 1, 1),
        ({"WORLD_SIZE": "4"}, 2, 1),
        (srun(1) | {"RANK": "0"}, 2, 2),  # left behind in a world that is whole
        (srun(1), 4, 1),
        (srun(3) | {"SLURM_NTASKS": "3"}, 2, 2),
        (torchrun(1) | {"LOCAL_RANK": "0"}, 2, 2),
        (torchrun(3), 4, 1),
        ({"NODE_RANK": "1"}, 2, 1),
    ],
)
def test_what_contradicts_itself_or_the_run_is_refused(environment, devices, nodes):
    with pytest.raises(SettingError, match=r"^trainer\.devices: the environment has "):
        find_world(environment, devices, nodes)


def test_processes_can_meet_where_the_environment_says():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for said in ({"MASTER_ADDR": "192.0.2.1"}, {"MASTER_ADDR": "no.such.host.invalid"}, {"MASTER_PORT": port}):
            assert find_world(said, 1, 1) is None
            with pytest.raises(SettingError, match=r"cannot meet"):
                find_world(said, 2, 1)


@pytest.mark.parametrize("script", ["train", "eval"])
def test_a_process_that_is_not_the_first_says_so_and_writes_nothing(tmp_path, script):
    own = {"train": [*SMALL, f"paths.output_dir={tmp_path / 'run'}"], "eval": ["model=models/pocket"]}[script]
    command = [f"src/{script}.py", *own]
    done = warm.run(command, ROOT, {**os.environ, "RANK": "3"}, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith("error: trainer.devices: the environment has RANK=3")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_shell_in_an_allocation_runs_as_ever(tmp_path):
    """Lightning would take this for one of four tasks of srun."""
    environment = {**os.environ, "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    command = ["src/train.py", *SMALL, "steps=1", f"paths.output_dir={tmp_path / 'run'}"]
    done = warm.run(command, ROOT, environment, timeout=400)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "finished.json").exists()
