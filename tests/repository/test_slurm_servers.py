"""serve.sbatch on a real SLURM of three nodes: where servers are, one that dies, a job that goes on, and refusals."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest
from conftest import ROOT
from slurm_cluster import checkout, cluster, installation, said, wait_for

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.getuid() != 0, reason="a node with a host name of its own takes root"),
]
CPU = ("--gpus-per-node=0", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=60")
SMALL = (
    "experiment=pocket",
    "~callbacks.evaluation",
    "callbacks.progress.every=1",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "data.held_out.size=8",
)
STARTS = 400  # seconds, at most, until a job has taken its first steps on two busy cores


@pytest.fixture(scope="module")
def slurm():
    with cluster(installation(ROOT / ".cache"), ("node1", "node2", "node3")) as private:
        yield private


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("slurm") / "clone")


@pytest.fixture
def start(slurm, clone):
    """Submit a job of so many nodes; its number and its run's folder."""

    def submit(nodes: int, *words: str, export: str = "ALL") -> tuple[str, Path]:
        options = (*CPU, f"--nodes={nodes}", f"--export={export}")
        job = slurm.submit("slurm/serve.sbatch", *words, cwd=clone, options=options)
        return job, clone / "runs" / "slurm" / job

    return submit


def servers(run: Path) -> dict[str, int]:
    """Processes of a run's servers, by the addresses at which they listen."""
    mark, found = f"OBLR_SERVER_TOKEN_FILE={run}/server.token".encode(), {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:  # it has ended
            continue
        if mark in environment and b"--host" in words:
            found[words[words.index(b"--host") + 1].decode()] = int(process.name)
    return found


def heard_at(job: str) -> list[str]:
    """The nodes' addresses at which the port of that job's servers is open."""
    addresses, port = [f"127.0.0.{k}" for k in (1, 2, 3)], 20000 + int(job) % 10000

    def heard(address: str) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex((address, port)) == 0

    return [address for address in addresses if heard(address)]


def steps(run: Path) -> list[int]:
    return [int(step) for step in re.findall(r"step (\d+)/", said(run))]


def outcome(slurm, job: str) -> tuple[str, str]:
    ((facts),) = slurm.wait(job)
    return facts["JobState"], facts["ExitCode"]


def test_one_of_two_servers_dies_and_is_back_and_the_job_goes_on(slurm, start):
    job, run = start(3, "serving=2", *SMALL, "steps=100000")
    wait_for(lambda: len(steps(run)) > 1, "the job does not reach its second step", STARTS)
    assert heard_at(job) == ["127.0.0.2", "127.0.0.3"] == sorted(servers(run))  # and not on the node that trains
    other = servers(run)["127.0.0.2"]
    os.kill(servers(run)["127.0.0.3"], signal.SIGKILL)
    wait_for(lambda: "a rollout server is left out" in said(run), "nobody notices that a server has died")
    before = len(steps(run))
    wait_for(lambda: len(steps(run)) > before + 1, "the other server does not do", STARTS)
    os.kill(other, signal.SIGSTOP)  # and the trainer waits for it: all processors are for the one that starts
    wait_for(lambda: "127.0.0.3" in heard_at(job), "the server is not started again", STARTS)
    os.kill(other, signal.SIGCONT)
    back = f"the rollout server at http://127.0.0.3:{20000 + int(job) % 10000} is back"
    wait_for(lambda: back in said(run), "the server is not taken back", STARTS)

    slurm("scancel", "--signal=USR1", job)
    wait_for((run / "run-2.json").exists, "the job does not start again", STARTS)
    assert "User defined signal" not in said(run)  # it was for the trainer
    before = len(steps(run))
    wait_for(lambda: len(steps(run)) > before + 1, "the job does not go on", STARTS)
    assert steps(run) == list(range(1, len(steps(run)) + 1))
    slurm("scancel", job)
    assert outcome(slurm, job)[0] == "CANCELLED"
    wait_for(lambda: not servers(run), "a server outlives its job")
    assert not (run / "run-3.json").exists()  # who cancels a job does not want it again


def test_two_nodes_train_and_the_last_one_serves(slurm, start):
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    if not routes:
        pytest.skip("gloo needs a network between machines, and this one has none")
    fsdp = ("trainer=fsdp", "trainer.accelerator=cpu", "steps=3")
    job, run = start(3, *SMALL, *fsdp, export=f"ALL,GLOO_SOCKET_IFNAME={routes[0].split()[0]}")
    wait_for(lambda: servers(run), "no server starts", STARTS)
    assert servers(run).keys() == {"127.0.0.3"}
    assert outcome(slurm, job) == ("COMPLETED", "0:0"), said(run)
    assert steps(run) == [1, 2, 3]
    assert (run / "train-rank1.log").exists()
    wait_for(lambda: not servers(run), "the server outlives the trainer")


def test_one_node_does_both(slurm, start):
    job, run = start(1, *SMALL, "steps=2")
    wait_for(lambda: servers(run), "no server starts", STARTS)
    assert servers(run).keys() == {"127.0.0.1"}
    assert outcome(slurm, job) == ("COMPLETED", "0:0"), said(run)
    assert steps(run) == [1, 2]
    assert (run / "server.log").exists()


def test_what_cannot_be_placed_is_refused_before_anything_starts(slurm, clone, start):
    job, run = start(2, "serving=2", *SMALL)
    assert outcome(slurm, job) == ("FAILED", "2:0")
    line = "serving=2: no node is left to train, the job has 2 (sbatch --nodes=3, or more)"
    assert (clone / f"slurm-{job}.out").read_text() == f"error: {line}\n"
    assert not run.exists()
