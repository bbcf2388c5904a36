"""What launchers tell a process: which of how many it is. A run is all of such a world, or none of it.

Libraries read these variables by themselves, each some of them: one that was left behind makes a run of one device
believe that another process writes its files. So all are looked at before anything else happens.
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Literal

from oblr.errors import SettingError

#: Who has started this process among the others of its run: torchrun, or whatever sets the same; srun; nobody.
World = Literal["torchrun", "srun", None]
#: How launchers call a process's place among others, and the number of these.
PLACES = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("RANK", "WORLD_SIZE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
)
#: A machine's place among others, and what else is read of srun.
NODES = ("NODE_RANK", "GROUP_RANK")
SRUN = ("SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES")
#: What a library takes as a sign that the other processes have been started, or hands on to those that it starts.
INHERITED = ("RANK", "LOCAL_RANK")


def find_world(environment: Mapping[str, str], devices: int, nodes: int) -> World:
    """Who has started the processes of a run of ``devices`` processes on each of ``nodes`` machines.

    An allocation is no launcher, nor is a step of one task: whoever else is needed is started from here.

    Raises:
        SettingError: the environment speaks of other processes than the run has.
    """
    names = (*(name for pair in PLACES for name in pair), *NODES, *SRUN)
    told = {name: _number(environment, name) for name in names if name in environment}
    ranks = devices * nodes
    if ranks > 1 and _by_srun(told, devices, nodes):
        return "srun"
    if ranks > 1 and _by_torchrun(told, devices, nodes):
        return "torchrun"
    for place, size in PLACES:
        inherited = ranks > 1 and place in INHERITED and place in told
        if inherited or told.get(place, 0) != 0 or (place in told and told.get(size, 1) != 1):
            raise _no_world([name for name in (place, size) if name in told], told, devices, nodes)
    if told.get("WORLD_SIZE", 1) not in (1, ranks):
        raise _no_world(["WORLD_SIZE"], told, devices, nodes)
    if beyond := [name for name in NODES if told.get(name, 0) >= nodes]:
        raise _no_world(beyond, told, devices, nodes)
    if ranks > 1 and nodes == 1:
        _check_address(environment)
    return None


def _by_srun(told: Mapping[str, int], devices: int, nodes: int) -> bool:
    """Whether srun has started all processes. Some containers translate its variables into torchrun's."""
    rank, local, node = (told.get(name) for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"))
    shape = (told.get(name) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    if rank is None or local is None or node is None or (*shape,) != (devices * nodes, devices):
        return False
    translated = {"RANK": rank, "WORLD_SIZE": devices * nodes, "LOCAL_RANK": local, "SLURM_NNODES": nodes}
    return rank < devices * nodes and all(told.get(name, number) == number for name, number in translated.items())


def _by_torchrun(told: Mapping[str, int], devices: int, nodes: int) -> bool:
    """Whether torchrun has, or somebody else who sets a process's place on its machine."""
    local, node = told.get("LOCAL_RANK"), told.get("NODE_RANK", told.get("GROUP_RANK", 0))
    if local is None or told.get("WORLD_SIZE") != devices * nodes or local >= devices or node >= nodes:
        return False
    return told.get("RANK", node * devices + local) == node * devices + local


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise SettingError("trainer.devices", f"the environment has {name}={text}, no number", f"unset {name}")
    return int(text)


def _no_world(names: Sequence[str], told: Mapping[str, int], devices: int, nodes: int) -> SettingError:
    ranks = devices * nodes
    said = ", ".join(f"{name}={told[name]}" for name in names)
    removed = " ".join(f"-u {name}" for name in names)
    others = max([ranks, *(told[name] for name in names if name.endswith(("_SIZE", "_NTASKS")))])
    fix = f"for a run of its own: env {removed} python …"
    if others > 1:
        started = "srun --ntasks-per-node" if "SLURM_PROCID" in names else "torchrun --nproc-per-node"
        fix += f"; for one of {others} processes: trainer=fsdp trainer.devices={others}, alone or by {started}={others}"
    return SettingError(
        "trainer.devices",
        f"the environment has {said}, which does not fit a run of {devices} × {nodes} processes",
        fix,
    )


def _check_address(environment: Mapping[str, str]) -> None:
    """Whether the processes that this one starts can meet where the environment says, if it does."""
    address = environment.get("MASTER_ADDR", "127.0.0.1")
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else 0
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((address, port), family=family).close()
    except (OSError, OverflowError) as error:
        said = " ".join(f"{name}={environment[name]}" for name in ("MASTER_ADDR", "MASTER_PORT") if name in environment)
        problem = f"the environment says {said}, where the processes of this run cannot meet: {error}"
        raise SettingError("trainer.devices", problem, "unset both") from error
