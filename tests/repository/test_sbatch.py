"""serve.sbatch with stand-ins for SLURM's commands and GPUs: which tasks it starts where, and what it refuses."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

#: Names of nodes that only SLURM knows, as `scontrol` has their addresses.
NODES = ("node1.invalid", "node2.invalid", "node3.invalid", "node4.invalid")
COMMANDS = {
    "srun": r"""line=$(printf '%q ' "$@"); echo "${line}" >>calls
case "$*" in *src/serve.py*) exec sleep 60 ;; esac""",
    "scontrol": """case "$*" in
  "show hostnames all") printf '%s\\n' node{1,2,3,4}.invalid ;;
  *) name=${!#}; number=${name:4:1}; echo "NodeName=$name Arch=x NodeAddr=127.0.0.$number NodeHostName=$name" ;;
esac""",
    "python": 'case "$2" in *hello*) grep -q "serve.py $3 $4" calls ;; esac',  # a server answers once it is started
}


@pytest.fixture
def sbatch(tmp_path):
    """Run serve.sbatch as SLURM would on the first of some nodes."""
    folder = tmp_path / "clone"
    code = folder / "runs" / "slurm" / "7" / "code" / "slurm"
    code.mkdir(parents=True)
    shutil.copy(ROOT / "slurm" / "job.sh", code)
    for name, text in COMMANDS.items():
        path = folder / (".venv/bin" if name == "python" else "bin") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def run(*words: str, nodes: int = 1, tasks: int = 4, gpus: int = 8) -> subprocess.CompletedProcess[str]:
        job = {
            **{"SLURM_SUBMIT_DIR": folder, "SLURM_JOB_ID": 7, "SLURM_CPUS_PER_TASK": 8, "SLURM_JOB_NODELIST": "all"},
            **{"SLURM_NNODES": nodes, "SLURM_NTASKS_PER_NODE": tasks},
            **{"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))), "PATH": f"{folder}/bin:{os.environ['PATH']}"},
        }
        environment = os.environ | {name: str(value) for name, value in job.items()}
        command = ["bash", str(ROOT / "slurm" / "serve.sbatch"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)

    return run


def started(folder: Path) -> tuple[list[list[str]], list[str]]:
    """Words of the steps of servers, and of the trainer's."""
    calls = [shlex.split(line) for line in (folder / "clone" / "calls").read_text().splitlines()]
    trainer = calls.pop()
    assert trainer[-1]
    assert any(word.endswith("src/train.py") for word in trainer)
    return calls, trainer


def test_on_one_node_the_gpus_that_do_not_train_serve(sbatch, tmp_path):
    assert sbatch("experiment=pocket").returncode == 0
    (server,), trainer = started(tmp_path)
    assert {"--nodes=1", "--relative=0", "--ntasks=1", "--cpus-per-task=8"} <= {*server}
    assert server[-1] == "rollout.engines.server.gpus='4,5,6,7'"
    place = server.index("experiment=pocket")
    assert server[place - 2 : place] == ["127.0.0.1", "20007"]
    assert {"--nodes=1", "--relative=0", "--ntasks=4", "CUDA_VISIBLE_DEVICES=0,1,2,3"} <= {*trainer}
    assert {"trainer.devices=4", "trainer.num_nodes=1", "rollout.engine=server"} <= {*trainer}
    assert trainer[-1] == "rollout.engines.server.url=http://127.0.0.1:20007"


def test_of_several_nodes_the_last_ones_serve(sbatch, tmp_path):
    assert sbatch("experiment=pocket", "serving=2", "steps=3", nodes=4, tasks=8).returncode == 0
    servers, trainer = started(tmp_path)
    for number, server in zip((3, 4), sorted(servers), strict=True):
        assert {"--nodes=1", f"--nodelist={NODES[number - 1]}", "--ntasks=1", "--cpus-per-task=64"} <= {*server}
        assert server[-1] == "rollout.engines.server.gpus='${oc.env:CUDA_VISIBLE_DEVICES}'"
        place = server.index("experiment=pocket")
        assert server[place - 2 : place + 2] == [f"127.0.0.{number}", "20007", "experiment=pocket", "steps=3"]
    assert {"--nodes=2", f"--nodelist={NODES[0]},{NODES[1]}", "--ntasks=16"} <= {*trainer}
    assert {"trainer.devices=8", "trainer.num_nodes=2", "rollout.engine=servers", "steps=3"} <= {*trainer}
    assert trainer[-1] == "rollout.engines.servers.urls=[http://127.0.0.3:20007,http://127.0.0.4:20007]"
    assert not any(word.startswith(("CUDA_VISIBLE_DEVICES", "serving")) for word in trainer)


@pytest.mark.parametrize(
    ("job", "word", "line"),
    [
        ({"nodes": 3}, "serving=3", "serving=3: no node is left to train, the job has 3 (sbatch --nodes=4, or more)"),
        ({"nodes": 1}, "serving=1", "serving=1: no node is left to train, the job has 1 (sbatch --nodes=2, or more)"),
        ({"nodes": 2}, "serving=0", "serving=0: none of 2 nodes serves (leave it out, or use slurm/train.sbatch)"),
        *(
            (
                {"nodes": 2},
                f"serving={value}",
                f"serving={value}: it is no number of nodes (leave it out, or give one below that of sbatch --nodes)",
            )
            for value in ("-1", "", "two", "08", "1e3")
        ),
        (
            {"nodes": 2},
            "steps=3",
            "--ntasks-per-node=4: a node that trains has 8 GPUs (sbatch --ntasks-per-node=8)",
        ),
        (
            {"nodes": 5, "tasks": 8},
            "steps=3",
            "--nodes=5: no scontrol names them here (use one node)",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused_before_anything_starts(sbatch, tmp_path, job, word, line):
    done = sbatch("experiment=pocket", word, **job)
    assert (done.returncode, done.stderr) == (2, f"error: {line}\n")
    assert not (tmp_path / "clone" / "calls").exists()
