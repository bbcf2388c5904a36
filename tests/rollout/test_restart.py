"""vLLM in this process: how it is started, and what takes its place when it has died."""

import gc
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from cases import wide
from conftest import POCKET
from test_datamodule import in_a_run
from vllm.device_allocator.cumem import CuMemAllocator

from oblr.errors import EngineDiedError, RunError, SettingError
from oblr.rollout.server import ServerEngine
from oblr.rollout.vllm import VLLMEngine, no_collections
from oblr.run import ranks


class Allocator:
    """vLLM's: all memory of a process's engines with sleep mode."""

    def __init__(self):
        self.used = 0

    def get_current_usage(self):
        return self.used


class SleepingLLM:
    """Stands for vLLM on a GPU, and has its workers' rule: none with sleep mode while another's memory is held."""

    started: ClassVar[list[dict]] = []

    def __init__(self, **settings):
        assert CuMemAllocator.instance.used == 0, "CuMem allocator can only be used for one instance per process."
        CuMemAllocator.instance.used = 100
        self.started.append(settings)
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self.shutdown))

    def shutdown(self):
        CuMemAllocator.instance.used = 0

    def sleep(self, level):
        pass

    def wake_up(self, tags):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 7 GiB")

    def collective_rpc(self, name, kwargs):
        list(kwargs["weights_iterator"])

    def reset_prefix_cache(self):
        pass


class ClingingLLM(SleepingLLM):
    """What somebody still refers to stays where it is."""

    def shutdown(self):
        CuMemAllocator.instance.used = 50


class BrokenLLM(SleepingLLM):
    def shutdown(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Makes engines of a stand-in."""
    monkeypatch.setattr(CuMemAllocator, "instance", Allocator())
    monkeypatch.setattr(SleepingLLM, "started", [])

    def make(llm=SleepingLLM, **settings):
        monkeypatch.setattr("vllm.LLM", llm)
        engine = VLLMEngine(str(POCKET), "bfloat16", 128, **settings)
        engine.gpu = True
        return engine

    return make


def test_an_engine_that_has_died_is_taken_down_before_the_next(on_a_gpu):
    engine = on_a_gpu()
    engine.start()
    engine.start()
    assert len(SleepingLLM.started) == 2
    engine.sleep()
    engine.start()
    assert not engine.asleep


@pytest.mark.parametrize("llm", [ClingingLLM, *wide(BrokenLLM)])
def test_one_that_cannot_be_taken_down_ends_the_run(on_a_gpu, llm):
    data = in_a_run(engine="vllm", engines={"vllm": partial(on_a_gpu, llm)})
    data.start_engine()
    data.engine.sleep()
    with pytest.raises(RunError, match=r"vLLM .*\(go on with ckpt_path=last; rollout\.engine=server") as caught:
        data.generate([[1, 2]], data.sampling, [1])
    assert not isinstance(caught.value, EngineDiedError)  # which would be tried again
    assert len(llm.started) == 1


def test_of_several_ranks_none_is_started_again(on_a_gpu, monkeypatch):
    engine = on_a_gpu()
    engine.start()
    two = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    monkeypatch.setattr(ranks, "_run", ranks.Ranks(two))
    with pytest.raises(RunError, match=r"^of several ranks none .*ckpt_path=last"):
        engine.start()


def test_memory_that_is_lacking_is_a_death(on_a_gpu):
    engine = on_a_gpu()
    engine.start()
    engine.sleep()
    with pytest.raises(EngineDiedError, match=r"^vLLM failed: CUDA out of memory\. Tried to allocate 7 GiB$"):
        engine.sync([], 1)
    assert engine.weight_version is None


@pytest.mark.wide
def test_vllm_itself_dies_and_nothing_changes(caplog):
    """On a CPU; it has limits of its own, too."""
    limited = partial(VLLMEngine, str(POCKET), "float32", 128, max_num_batched_tokens=256, max_num_seqs=8)
    data = in_a_run(engine="vllm", engines={"vllm": limited}, prompts_per_step=4)
    data.start_engine()
    scheduler = data.engine._llm.llm_engine.vllm_config.scheduler_config
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (256, 8)
    prompts, seeds = [data.encode(problem) for problem in data.held_out[:4]], range(100, 500, 100)
    undisturbed = data.generate(prompts, data.sampling, seeds)
    first = data.engine._llm

    def die(*_, **__):
        raise RuntimeError("the worker is gone")

    first.enqueue = die
    assert data.generate(prompts, data.sampling, seeds) == undisturbed
    assert data.engine._llm is not first
    assert [record.message for record in caplog.records if record.name == "oblr.rollout.live"] == [
        "step 1 is repeated: the rollout engine died and is restarted (1 of rollout.restarts=3): "
        "vLLM failed: the worker is gone"
    ]
    data.engine.close()
    gc.collect()


def test_what_only_a_gpu_takes(on_a_gpu):
    on_a_gpu(max_num_seqs=64).start()
    CuMemAllocator.instance.used = 0
    on_a_gpu(enforce_eager=True, gpu_memory_utilization=0.3).start()
    CuMemAllocator.instance.used = 0
    engine = on_a_gpu()
    engine.gpu = False
    engine.start()
    graphs, eager, cpu = SleepingLLM.started
    assert graphs["enforce_eager"] is False
    assert (graphs["max_num_seqs"], graphs["max_num_batched_tokens"]) == (64, None)
    assert (eager["enforce_eager"], eager["gpu_memory_utilization"]) == (True, 0.3)
    assert cpu["enforce_eager"] is True
    assert graphs.keys() - cpu.keys() == {"gpu_memory_utilization", "enable_sleep_mode"}


def test_what_a_server_is_told():
    server = partial(ServerEngine, str(POCKET), "float32", 128, "log")
    limits = ["--max-num-batched-tokens", "4096", "--max-num-seqs", "64"]
    arguments = server(max_num_batched_tokens=4096, max_num_seqs=64).arguments
    assert [a for a in arguments if a in limits] == limits
    assert not {*limits} & {*server().arguments}
    assert "--enforce-eager" in server().arguments  # there is no GPU here


@pytest.mark.parametrize("engine", [VLLMEngine, ServerEngine])
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_num_seqs": 0}, r"max_num_seqs: 0 cannot work"),
        ({"max_num_batched_tokens": -1}, r"max_num_batched_tokens: -1 cannot work"),
        ({"max_num_batched_tokens": 32, "max_num_seqs": 64}, r"max_num_batched_tokens: 32 are not enough"),
    ],
)
def test_limits_that_cannot_work(engine, limits, message):
    log = {"log": "log"} if engine is ServerEngine else {}
    with pytest.raises(SettingError, match=rf"^rollout\.engines\.(vllm|server)\.{message}"):
        engine(str(POCKET), "float32", 128, **log, **limits)


def test_collections_go_on_after_a_shutdown_that_fails():
    collect = gc.collect
    with no_collections():
        assert gc.collect is not collect
    assert gc.collect is collect
    with suppress(RuntimeError), no_collections():
        raise RuntimeError
    assert gc.collect is collect
