"""Where gloo listens: an interface that is there, and on several machines one that the others reach."""

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from refusals import check

from oblr.errors import RunError, SettingError
from oblr.rollout.process import free_port
from oblr.run import meeting
from oblr.run.meeting import check_interfaces, meet


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """Makes a machine of interfaces, whose name has this address."""

    def make(address, told=None):
        def resolve(name, *_, **__):
            assert name == "node7"
            if address is None:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

        monkeypatch.setattr(meeting.socket, "gethostname", lambda: "node7")
        monkeypatch.setattr(meeting.socket, "getaddrinfo", resolve)
        if told is not None:
            monkeypatch.setenv("GLOO_SOCKET_IFNAME", told)

    for variable in meeting.INTERFACES:
        monkeypatch.delenv(variable, raising=False)
    routes = "Iface\tDestination\tGateway\nib0\t0000A8C0\t00000000\neth0\t00000000\t0100A8C0\neth0\t0000A8C0\t0\n"
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, **given: routes if path == Path("/proc/net/route") else read(path, **given)
    )
    monkeypatch.setattr(meeting.socket, "if_nameindex", lambda: [(1, "lo"), (2, "ifb0"), (3, "eth0"), (4, "ib0")])
    return make


@pytest.mark.parametrize(
    ("address", "told", "words"),
    [
        ("127.0.1.1", None, ["node7 calls itself by an address of its own alone"]),
        ("::1", None, ["node7 calls itself"]),
        (None, None, ["node7 calls itself"]),
        ("10.1.2.3", "lo", ["node7 is told GLOO_SOCKET_IFNAME=lo"]),
        ("10.1.2.3", "eth9", ["GLOO_SOCKET_IFNAME=eth9 is no interface of node7"]),
    ],
)
def test_a_machine_that_others_would_not_reach_is_refused(host, address, told, words):
    host(address, told)
    with pytest.raises(SettingError, match=r"^trainer\.num_nodes: ") as refused:
        check_interfaces(2)
    for word in [*words, "export GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0", ": ib0, eth0)"]:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "address", "told"),
    [(1, "127.0.1.1", None), (1, None, "lo"), (2, "10.1.2.3", None), (2, "127.0.1.1", "eth0,ib0"), (2, None, "ib0")],
)
def test_one_that_they_reach_is_not(host, nodes, address, told):
    host(address, told)
    check_interfaces(nodes)


def test_it_is_one_line_before_anything_loads(refused, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    check(refused(), "trainer.num_nodes", "GLOO_SOCKET_IFNAME=eth9 is no interface")


def test_where_gloo_finds_nothing_it_is_a_line(monkeypatch):
    """An interface may be there and have no address."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    with pytest.raises(RunError, match=r"do not find each other \(GLOO_SOCKET_IFNAME=eth9, .*export GLOO_SOCKET_IFN"):
        meet("127.0.0.1", free_port(), 0, 1, 2, "gloo", torch.device("cpu"))
    assert not dist.is_initialized()
