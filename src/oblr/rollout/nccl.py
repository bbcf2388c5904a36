"""Weights into a vLLM server by vLLM's own NCCL transfer. Imports vllm; written for 0.32."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

from oblr.errors import EngineDiedError
from oblr.rollout.client import Client
from oblr.rollout.process import free_port

Weights = Iterable[tuple[str, Tensor]]


class NCCLSender:
    """By packed broadcasts from this rank's GPU to those of the server, which are others.

    The group is made by the first `send`, so that ``rollout.sync_timeout`` covers that, too; where NCCL waits for
    a server that has died, nothing else ends it.
    """

    def __init__(self, client: Client):
        self.client, self.part = client, Part()
        self.engine: NCCLTrainerWeightTransferEngine | None = None

    def send(self, weights: Weights) -> None:
        """Between ``/start_weight_update`` and ``/finish_weight_update``.

        Raises:
            EngineDiedError: NCCL or the server has failed; this sender is of no use any more.
        """
        calls = Calls(self.client)
        try:
            engine = self.engine = self.engine or self._tried(lambda: self._meet(calls))
            engine.client = calls
            for part in parts(weights, engine.packed_buffer_size_bytes):
                self.part.weights = part
                # vLLM packs on streams of its own, which do not wait for the one that the weights come from.
                torch.cuda.current_stream().synchronize()
                self._tried(engine.send_weights)
        finally:
            self.part.weights = []
            calls.give_up()

    def _meet(self, calls: "Calls") -> NCCLTrainerWeightTransferEngine:
        meeting = NCCLTrainerInitInfo(
            rank=0,
            master_address=address_towards(self.client),
            master_port=free_port(),
            world_size=self.client.get("/get_world_size")["world_size"] + 1,
        )
        return NCCLTrainerWeightTransferEngine.trainer_init(meeting, client=calls, source=self.part)

    def _tried(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except EngineDiedError:
            raise
        except RuntimeError as error:  # NCCL's
            raise EngineDiedError(f"{self.client.url}: no weights by NCCL: {error}") from error


class Part(WeightSource):
    """The weights that are sent next; vLLM asks for them when it sends."""

    def __init__(self) -> None:
        self.weights: list[tuple[str, Tensor]] = []

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in self.weights]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.weights)


class Calls:
    """What vLLM's sender asks of the server (its ``VLLMWeightSyncClient``) in one `NCCLSender.send`.

    It asks from a thread that the interpreter waits for at its end, and a server that is stuck in NCCL never replies:
    after `give_up` that thread waits no more.
    """

    def __init__(self, client: Client):
        self.client = client
        self.over: Future[None] = Future()

    def give_up(self) -> None:
        self.over.set_result(None)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._wait(lambda: self.client.post("/init_weight_transfer_engine", init_info=init_info))

    def start_weight_update(self) -> None:
        """The engine does it, before the first part."""

    def update_weights(self, update_info: Any) -> None:
        self._wait(lambda: self.client.post("/update_weights", update_info=update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The engine does it, after the last part."""

    def _wait(self, call: Callable[[], Any]) -> None:
        reply: Future[Any] = Future()

        def run() -> None:
            try:
                reply.set_result(call())
            except EngineDiedError as error:
                reply.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        wait([reply, self.over], return_when=FIRST_COMPLETED)
        if not reply.done():
            raise EngineDiedError(f"{self.client.url} did not reply before the transfer was given up")
        reply.result()


def parts(weights: Weights, size: int) -> Iterator[list[tuple[str, Tensor]]]:
    """The weights on this rank's GPU, as soon as there are ``size`` bytes of them."""
    part: list[tuple[str, Tensor]] = []
    held = 0
    for name, weight in weights:
        part.append((name, weight.cuda()))
        held += weight.nbytes
        if held >= size:
            yield part
            part, held = [], 0
    if part:
        yield part


def address_towards(client: Client) -> str:
    """Of this machine, as the server sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((client.host, client.port))
        return probe.getsockname()[0]
