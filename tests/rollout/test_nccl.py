"""Weights by vLLM's own sender, where only NCCL and the GPU are stand-ins: the server is asked for what it expects."""

import inspect
import shutil
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import hostile
import huggingface_hub
import pytest
import torch
from conftest import POCKET, ROOT
from vllm.distributed.weight_transfer import nccl_common, nccl_engine, packed_tensor
from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient
from vllm.engine.arg_utils import EngineArgs

from oblr.errors import EngineDiedError, SettingError
from oblr.rollout import nccl
from oblr.rollout.client import Client, Refused
from oblr.rollout.nccl import Calls, NCCLSender, parts
from oblr.rollout.server import ServerEngine
from oblr.rollout.vllm import VLLMEngine

WEIGHTS = [
    ("embed", torch.arange(12.0).view(3, 4)),
    ("norm", torch.ones(4, dtype=torch.bfloat16)),
    ("head", torch.arange(12.0).view(4, 3).mT),
]


class Server:
    """Stands for a vLLM server: keeps what it is asked for, and may fail or never reply."""

    def __init__(self):
        self.asked: list[tuple[str, dict]] = []
        self.replies = {"/get_world_size": {"world_size": 2}, "/reset_prefix_cache": {"success": True}}
        self.hangs, self.refuses, self.released = "", "", threading.Event()
        self.http = hostile.Server(self.answer)
        self.client = Client(self.http.url, self.http.secret)

    def answer(self, path, body):
        self.asked.append((path, body))
        if path == self.hangs:
            self.released.wait()
        if path == self.refuses:
            return 400, b"{}"
        version = next((b["weight_version"] for p, b in self.asked if p == "/finish_weight_update"), None)
        return {"/weight_info": {"weight_version": version}, **self.replies}.get(path, {})

    def paths(self):
        return [path for path, _ in self.asked]


@pytest.fixture
def server():
    server = Server()
    yield server
    server.released.set()
    server.http.shutdown()


class Wire:
    """Stands for NCCL and the GPU."""

    def __init__(self, monkeypatch, server):
        self.sent: list[tuple[str, torch.Tensor]] = []
        self.waited = self.fails = False
        for real, replaced in (
            (nccl_common.trainer_init, self.endpoint),
            (packed_tensor.packed_nccl_broadcast_producer, self.producer),
        ):
            assert list(inspect.signature(replaced).parameters) == list(inspect.signature(real).parameters)
        monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", self.endpoint)
        monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", self.producer)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=self.wait))
        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)

    def wait(self):
        self.waited = True

    def endpoint(self, init_info, rank=0):
        return SimpleNamespace(init_info=init_info)

    def producer(self, iterator, group, src, post_iter_func, buffer_size_bytes=0, num_buffers=0):
        assert self.waited, "packed before the weights were there"
        self.waited = False
        if self.fails:
            raise RuntimeError("NCCL error: unhandled system error")
        self.sent += [(item[0], post_iter_func(item).clone()) for item in iterator]


@pytest.fixture
def wire(monkeypatch, server):
    return Wire(monkeypatch, server)


@pytest.fixture
def engine(server):
    """As it is once it has found its server."""
    engine = ServerEngine(str(POCKET), "float32", 128, "log")
    engine.client, engine.sender = server.client, NCCLSender(server.client)
    return engine


def test_a_sync_asks_the_server_in_the_right_order(engine, server, wire, monkeypatch):
    monkeypatch.setattr(nccl, "parts", lambda weights, size: parts(weights, 40))
    engine.sync(iter(WEIGHTS), 7)
    assert engine.weight_version == 7
    first = server.paths().index("/update_weights")
    assert sorted(server.paths()[:first]) == ["/get_world_size", "/init_weight_transfer_engine", "/start_weight_update"]
    assert server.paths()[0] == "/start_weight_update"
    assert server.paths()[first:] == [
        *["/update_weights"] * 2,
        *("/finish_weight_update", "/reset_prefix_cache", "/weight_info"),
    ]
    bodies = dict(server.asked)
    assert bodies["/finish_weight_update"] == {"weight_version": "7"}
    # What the server does with them, by vLLM's own classes.
    init = nccl_common.NCCLWeightTransferInitInfo(**bodies["/init_weight_transfer_engine"]["init_info"])
    assert (init.world_size, init.rank_offset, init.packed, init.master_address) == (3, 1, True, "127.0.0.1")
    updates = [body["update_info"] for path, body in server.asked if path == "/update_weights"]
    infos = [nccl_engine.NCCLWeightTransferUpdateInfo(**update) for update in updates]
    assert [info.names for info in infos] == [["embed"], ["norm", "head"]]
    assert [info.dtype_names for info in infos] == [["float32"], ["bfloat16", "float32"]]
    assert [info.shapes for info in infos] == [[[3, 4]], [[4], [3, 4]]]
    assert [name for name, _ in wire.sent] == [name for name, _ in WEIGHTS]
    assert all(torch.equal(sent, weight) for (_, sent), (_, weight) in zip(wire.sent, WEIGHTS, strict=True))
    engine.sync(iter(WEIGHTS), 7)  # the group is the same
    assert server.paths().count("/init_weight_transfer_engine") == 1
    assert len(wire.sent) == 2 * len(WEIGHTS)


def executor_threads() -> set[threading.Thread]:
    """Those that the interpreter waits for when it ends."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")}


def test_a_broadcast_that_fails_ends_the_sync_although_the_server_never_replies(engine, server, wire):
    engine.sync(iter(WEIGHTS), 1)
    others = executor_threads()  # of earlier tests
    wire.fails, server.hangs = True, "/update_weights"
    rest = iter(WEIGHTS)
    with pytest.raises(EngineDiedError, match=f"^{server.client.url}: no weights by NCCL: NCCL error: unhandled"):
        engine.sync(rest, 2)
    assert engine.weight_version is None
    assert next(rest, None) is None  # other ranks take part in gathering to its end
    deadline = time.monotonic() + 120
    while executor_threads() - others and time.monotonic() < deadline:
        time.sleep(0.01)
    assert executor_threads() <= others


@pytest.mark.wide
def test_a_process_whose_broadcast_has_failed_can_end(tmp_path):
    """Nothing that the interpreter joins waits for the server."""
    program = tmp_path / "program.py"
    program.write_text(
        "import pytest\n"
        "from test_nccl import *\n"
        "server = Server()\n"
        "wire = Wire(pytest.MonkeyPatch(), server)\n"
        "wire.fails, server.hangs = True, '/update_weights'\n"
        "try:\n    NCCLSender(server.client).send(WEIGHTS)\n"
        "except EngineDiedError as error:\n    print(error)\n"
    )
    path = f"{ROOT}/tests:{ROOT}/tests/helpers:{ROOT}/tests/rollout:{ROOT}/src:{ROOT}"
    done = subprocess.run(
        [sys.executable, str(program)], env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "no weights by NCCL" in done.stdout


def test_what_the_server_refuses_is_an_error(engine, server, wire):
    server.refuses = "/update_weights"
    with pytest.raises(Refused, match="/update_weights: 400"):
        engine.sync(iter(WEIGHTS), 1)


def test_a_group_that_is_not_made_is_an_error(engine, server, wire):
    server.refuses = "/init_weight_transfer_engine"
    with pytest.raises(Refused, match="/init_weight_transfer_engine: 400"):
        engine.sync(iter(WEIGHTS), 1)


def test_calls_are_those_that_vllm_makes():
    assert isinstance(Calls(Client("http://127.0.0.1:1", b"")), VLLMWeightSyncClient)
    for name, method in inspect.getmembers(VLLMWeightSyncClient, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(getattr(Calls, name)).parameters) == list(
                inspect.signature(method).parameters
            )


def test_parts_hold_a_bounded_share(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    held, largest = [], 0

    def weights():
        for i in range(10):
            weight = torch.ones(100)
            held.append(weight.nbytes)
            yield str(i), weight

    for part in parts(weights(), 1000):
        largest = max(largest, sum(weight.nbytes for _, weight in part))
        held.clear()
    assert largest == 1200


def arguments(**settings):
    return " ".join(ServerEngine(str(POCKET), "float32", 128, "log", **settings).arguments)


def test_the_way_of_weights_and_the_share_of_gpus_follow_from_whose_they_are(monkeypatch):
    assert '"http"' in arguments(gpus="0,1")  # there are none
    assert "--gpu-memory-utilization" not in arguments()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    trainers, own = arguments(), arguments(gpus="2,3,4,5,6,7")
    assert '"http"' in trainers
    assert f"--gpu-memory-utilization {VLLMEngine('m', 'float32', 1).gpu_memory_utilization}" in trainers
    assert "parallel" not in trainers
    assert '"nccl"' in own
    assert "--gpu-memory-utilization 0.9 --data-parallel-size 6" in own
    assert "--tensor-parallel-size 2 --data-parallel-size 3" in arguments(gpus="2,3,4,5,6,7", tensor_parallel_size=2)
    assert "--gpu-memory-utilization 0.7" in arguments(gpu_memory_utilization=0.7)
    assert '"http"' in arguments(gpus="1", transfer="http")
    with pytest.raises(SettingError, match=r"^rollout\.engines\.server\.tensor_parallel_size: 3 GPUs .* groups of 2"):
        ServerEngine(str(POCKET), "float32", 128, "log", gpus="1,2,3", tensor_parallel_size=2)


@pytest.mark.parametrize(("backend", "gpu", "transfer"), [("nccl", True, "nccl"), ("http", True, "http")])
def test_the_way_of_weights_is_that_of_the_server(server, tmp_path, monkeypatch, backend, gpu, transfer):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    announce(server, backend)
    engine = ServerEngine(str(POCKET), "float32", 128, "log", server.client.url, server.http.write_token(tmp_path))
    assert engine.transfer == transfer


def test_a_server_that_waits_for_nccl_is_of_no_use_without_gpu(server, tmp_path):
    announce(server, "nccl")
    with pytest.raises(SettingError, match=r"^rollout\.engines\.server\.transfer: .* has transfer nccl, not http"):
        ServerEngine(str(POCKET), "float32", 128, "log", server.client.url, server.http.write_token(tmp_path))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub's cache with the pocket policy in it, and no hub."""
    repository = tmp_path / "hub" / "models--acme--pocket"
    for commit in ("0" * 40, "1" * 40):
        shutil.copytree(POCKET, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return repository


def test_a_model_of_the_hub_is_the_same_by_its_folder_in_the_cache(server, hub, tmp_path):
    """So vLLM calls it where the hub is not to be asked, and so does a server of another machine."""
    own, token = EngineArgs(model="acme/pocket").model, server.http.write_token(tmp_path)
    assert own == str(hub / "snapshots" / ("1" * 40))
    elsewhere = f"/home/else/.cache/huggingface/hub/models--acme--pocket/snapshots/{'1' * 40}"
    for named in (own, "acme/pocket", elsewhere):
        announce(server, "http", named)
        for model in ("acme/pocket", own):
            ServerEngine(model, "float32", 128, "log", server.client.url, token)
    for named in (own.replace("1" * 40, "0" * 40), own.replace("acme", "else"), "acme/pockets", str(POCKET)):
        announce(server, "http", named)
        with pytest.raises(SettingError, match=r"^policy\.path: .* has model .*, not .*1{40}"):
            ServerEngine("acme/pocket", "float32", 128, "log", server.client.url, token)


def announce(server, backend, model=str(POCKET)):
    """Let the server say that it is what the tests' engine wants."""
    model = {"model": model, "dtype": "torch.float32", "max_model_len": 128}
    model |= {"logprobs_mode": "processed_logprobs", "generation_config": "vllm"}
    transfer, parallel = {"backend": backend}, {"data_parallel_size": 1}
    config = {"model_config": model, "weight_transfer_config": transfer, "parallel_config": parallel}
    paths = {path: {} for path in ("/start_weight_update", "/pause", "/inference/v1/generate", "/collective_rpc")}
    server.replies |= {"/openapi.json": {"paths": paths}, "/server_info?config_format=json": {"vllm_config": config}}
