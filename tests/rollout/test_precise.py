"""What an engine in float32 computes with: products that Triton compiles for an H100, which takes no GPU; threads."""

import os
import sys
import types

import pytest
import torch
import triton
import triton.language as tl
from conftest import POCKET
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from oblr.rollout.server import ServerEngine
from oblr.rollout.vllm import VLLMEngine


@triton.jit
def product(X, Y, Z):
    """As attention makes them, which does not say how either."""
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(Z + at, tl.dot(tl.load(X + at), tl.load(Y + at)))


def rounds() -> bool:
    """Whether factors are rounded to TF32 in what is compiled now."""
    source = ASTSource(product, dict.fromkeys("XYZ", "*fp32"))
    return "tf32" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    kept = dict(os.environ)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_in_this_process(monkeypatch, dtype):
    vllm, found = types.ModuleType("vllm"), []
    vllm.LLM = lambda **settings: found.append(rounds())
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    VLLMEngine(str(POCKET), dtype, 128).start()
    assert found == [dtype == "bfloat16"]  # which is nobody's float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_in_a_process_of_its_own(monkeypatch, dtype):
    for name, value in ServerEngine(str(POCKET), dtype, 128, "log").environment.items():
        monkeypatch.setenv(name, value)
    assert rounds() == (dtype == "bfloat16")


def test_threads_are_those_of_before(monkeypatch):
    """vLLM leaves itself one, for a loop that is not its own here."""
    vllm, before = types.ModuleType("vllm"), torch.get_num_threads()
    vllm.LLM = lambda **settings: torch.set_num_threads(1)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setattr(torch, "set_num_threads", torch._C.set_num_threads)  # vLLM's CPU build replaces it for good
    torch.set_num_threads(3)
    try:
        VLLMEngine(str(POCKET), "float32", 128).start()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
