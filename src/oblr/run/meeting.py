"""How the ranks of a run find each other: nobody listens on more of the network than they need.

Torch's own store listens on all interfaces of rank 0's machine, whatever address it is told. Who reaches a store or a
rank's port is taken for a rank, and what ranks say to each other is unpickled. So ranks of one machine meet where only
that machine is, and others on the interface that ``MASTER_ADDR`` names. torchrun has a store of its own, which is
left as it is.
"""

import ipaddress
import os
import socket

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from oblr.errors import RunError

#: Of this machine alone, by Linux's name; variables by which gloo and NCCL are told where they listen.
LOOPBACK, INTERFACES = "lo", ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def meet(address: str, port: int, rank: int, count: int, nodes: int, backend: str, device: torch.device) -> None:
    """Make the default group of ``count`` processes on ``nodes`` machines, before anybody else does.

    Raises:
        RunError: rank 0 cannot listen at the address.
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
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=count,
        timeout=default_pg_timeout,
        device_id=None if device.type == "cpu" else device,
    )


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
