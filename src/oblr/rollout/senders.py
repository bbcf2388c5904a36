"""Weights into a vLLM server through its weight-transfer API; one rank sends. `nccl.py` has another way."""

import base64
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from oblr.rollout.client import Client

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
