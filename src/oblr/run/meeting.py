"""How the ranks of a run find each other: nobody listens on more of the network than they need.

Torch's own store listens on all interfaces of rank 0's machine, whatever address it is told. Who reaches a store or a
rank's port is taken for a rank, and what ranks say to each other is unpickled. So ranks of one machine meet where only
that machine is, and others on the interface that ``MASTER_ADDR`` names. torchrun has a store of its own, which is
left as it is.
"""

import ipaddress
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from oblr.errors import RunError, SettingError, why

#: Of this machine alone, by Linux's name; variables by which gloo and NCCL are told where they listen.
LOOPBACK, INTERFACES = "lo", ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def meet(address: str, port: int, rank: int, count: int, nodes: int, backend: str, device: torch.device) -> None:
    """Make the default group of ``count`` processes on ``nodes`` machines, before anybody else does.

    Raises:
        RunError: rank 0 cannot listen at the address, or gloo finds no way to the others.
    """
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)
    if nodes == 1 and _is_loopback(address):
        for variable in INTERFACES:
            os.environ.setdefault(variable, LOOPBACK)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or dist.is_initialized():
        return
    listening = _listen(address, port, nodes) if rank == 0 else None
    store = dist.TCPStore(
        address,
        port,
        count,
        is_master=rank == 0,
        timeout=default_pg_timeout,
        multi_tenant=True,
        master_listen_fd=None if listening is None else listening.detach(),
    )
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=count,
            timeout=default_pg_timeout,
            device_id=None if device.type == "cpu" else device,
        )
    except RuntimeError as error:
        heard = ", ".join(f"{name}={os.environ.get(name, '')}" for name in INTERFACES)
        raise RunError(f"the ranks of this run do not find each other ({heard}; {_remedy()}): {why(error)}") from error


def check_interfaces(nodes: int) -> None:
    """Whether other machines can reach where gloo would listen on this one.

    That is the interface that it is told, or the address of this machine's own name, which may be loopback's.

    Raises:
        SettingError: they cannot.
    """
    gloo, host = INTERFACES[0], socket.gethostname()
    told = [name for name in os.environ.get(gloo, "").split(",") if name]
    if absent := [name for name in told if name not in {name for _, name in socket.if_nameindex()}]:
        raise SettingError("trainer.num_nodes", f"{gloo}={absent[0]} is no interface of {host}", _remedy())
    if nodes > 1 and (told == [LOOPBACK] or (not told and _is_alone(host))):
        own = f"is told {gloo}={LOOPBACK}" if told else "calls itself by an address of its own alone"
        raise SettingError("trainer.num_nodes", f"{host} {own}, where no other machine can reach it", _remedy())


def _is_alone(host: str) -> bool:
    """Whether a machine's own name is loopback's, as Debian has it, or nobody's: then gloo takes loopback, too."""
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0]).is_loopback
    except (OSError, ValueError):
        return True


def _remedy() -> str:
    """What to type, with the interfaces that this machine has routes by."""
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    others = list(dict.fromkeys(line.split()[0] for line in routes)) or ["INTERFACE"]
    told = " ".join(f"{name}={others[0]}" for name in INTERFACES)
    return f"export {told}, or another that all machines share: {', '.join(others)}"


def _listen(address: str, port: int, nodes: int) -> socket.socket:
    """Of several machines, one whose own name for itself is loopback's listens everywhere: the others know another."""
    try:
        family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        host = "" if nodes > 1 and _is_loopback(str(place[0])) else place[0]
        return socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        raise RunError(f"the ranks of this run cannot meet at {address}:{port}: {error}") from error


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(address)).is_loopback
    except (OSError, ValueError):
        return False
