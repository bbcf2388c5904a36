"""Two ways for new weights into a vLLM server, both through its weight-transfer API; `send` is called by one rank."""

import base64
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

from oblr.rollout.client import Client
from oblr.rollout.process import free_port

Weights = Iterable[tuple[str, Tensor]]


class Sender(Protocol):
    """Knows one server; made anew when that has been restarted."""

    def send(self, weights: Weights) -> None:
        """Between ``/start_weight_update`` and ``/finish_weight_update``."""


class HTTPSender:
    """In the body of requests, which any machine and a server without GPU can take.

    Args:
        size: of the pieces, bytes: what is held of the weights besides the one that is being sent.
    """

    def __init__(self, client: Client, size: int):
        self.client, self.size = client, size

    def send(self, weights: Weights) -> None:
        for piece in pieces(weights, self.size):
            self.client.post("/update_weights", update_info=piece)


def pieces(weights: Weights, size: int) -> Iterator[dict[str, Any]]:
    """The bytes of all weights, cut every ``size``: the fields of :class:`oblr.rollout.transfer.Piece`."""
    tensors: list[tuple[str, str, list[int]]] = []
    data = bytearray()
    for name, weight in weights:
        tensors.append((name, str(weight.dtype).removeprefix("torch."), list(weight.shape)))
        left = memoryview(weight.cpu().contiguous().view(torch.uint8).flatten().numpy().data)
        while left:
            room = size - len(data)
            data += left[:room]
            left = left[room:]
            if len(data) == size:
                yield {"tensors": tensors, "data": base64.b64encode(data).decode()}
                tensors, data = [], bytearray()
    if data:
        yield {"tensors": tensors, "data": base64.b64encode(data).decode()}


class NCCLSender:
    """By NCCL broadcast, one weight after the other, from this rank's GPU to those of the server."""

    def __init__(self, client: Client):
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        self.client = client
        world_size = client.get("/get_world_size")["world_size"] + 1
        meeting = {"master_address": address_towards(client), "master_port": free_port(), "world_size": world_size}
        with ThreadPoolExecutor(1) as beside:
            joined = beside.submit(
                client.post, "/init_weight_transfer_engine", init_info={**meeting, "rank_offset": 1, "packed": False}
            )
            self.group: Any = trainer_init(meeting)
            joined.result()

    def send(self, weights: Weights) -> None:
        with ThreadPoolExecutor(1) as beside:
            for name, weight in weights:
                dtype_name = str(weight.dtype).removeprefix("torch.")
                described = {"names": [name], "dtype_names": [dtype_name], "shapes": [list(weight.shape)]}
                received = beside.submit(self.client.post, "/update_weights", update_info=described)
                self.group.broadcast(weight.contiguous(), src=0, stream=torch.cuda.current_stream())
                received.result()


def address_towards(client: Client) -> str:
    """Of this machine, as the server sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((client.host, client.port))
        return probe.getsockname()[0]
