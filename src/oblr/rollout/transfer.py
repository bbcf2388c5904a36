"""Runs inside a ``vllm serve`` that this project feeds: new weights come with the body of vLLM's ``/update_weights``.

Importing this module registers the backend ``http`` with vLLM's weight transfer; a server imports it where it is
started with ``--worker-extension-cls oblr.rollout.transfer.HTTPTransfer``. Written for vLLM 0.32.
"""

import base64
import math
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from oblr.errors import StaleEngineError
from oblr.rollout.layers import read, repack_tied_head
from oblr.rollout.readback import Block, from_text, to_text


@dataclass
class Piece(WeightTransferUpdateInfo):
    """The next bytes of all weights, one after the other.

    Attributes:
        tensors: name, dtype and shape of the weights that begin in it.
        data: base64 of the bytes.
    """

    tensors: list[tuple[str, str, list[int]]]
    data: str


class HTTPWeightTransferEngine(WeightTransferEngine[WeightTransferInitInfo, Piece]):
    """Puts weights together from pieces and loads each as soon as it is complete."""

    init_info_cls, update_info_cls = WeightTransferInitInfo, Piece

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.updating = False
        self.expected: list[tuple[str, str, list[int]]] = []
        self.received = bytearray()
        self.model: Any

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """There is nothing to agree on."""

    def start_weight_update(self) -> None:
        if self.updating:  # a trainer died half-way; layers would mix its weights with the next one's
            finalize_layerwise_reload(self.model, self.model_config)
        initialize_layerwise_reload(self.model)
        self.updating, self.expected, self.received = True, [], bytearray()

    def receive_weights(self, update_info: Piece) -> None:
        self.expected += update_info.tensors
        self.received += base64.b64decode(update_info.data)
        while self.expected:
            name, dtype_name, shape = self.expected[0]
            dtype = getattr(torch, dtype_name)
            size = math.prod(shape) * dtype.itemsize
            if len(self.received) < size:
                break
            weight = torch.frombuffer(self.received[:size], dtype=dtype).view(shape)
            del self.expected[0], self.received[:size]
            # Once generated with, NaN stays in the KV cache and spoils whatever comes after it.
            if not torch.linalg.vector_norm(weight, math.inf).isfinite():
                raise ValueError(f"{name} is not finite")
            self.model.load_weights([(name, weight.to(self.device))])

    def finish_weight_update(self) -> None:
        if self.expected or self.received:
            raise RuntimeError(f"{len(self.received)} bytes came of {[name for name, *_ in self.expected]}")
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            repack_tied_head(self.model)
        self.updating = False

    def shutdown(self) -> None:
        """There is nothing to release."""


WeightTransferEngineFactory.register_engine("http", HTTPWeightTransferEngine)


class HTTPTransfer:
    """What vLLM's worker has besides its own methods: the routes for them come with vLLM."""

    def read_back(self, blocks: str) -> str:
        """For ``/collective_rpc``: see :func:`oblr.rollout.layers.read`."""
        worker: Any = self
        return to_text(read(worker.get_model(), [Block(*block) for block in from_text(blocks)]))

    def compare_copy(self, blocks: str, first: list[str]) -> None:
        """Raise where this copy of the model has other numbers than ``first``, which the first one's workers read."""
        if self.read_back(blocks) not in first:
            raise StaleEngineError("this copy has other numbers than the first")
