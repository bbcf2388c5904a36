"""What the parts of ``gpu.py`` share: the device, its clock and memory, and random policies and rollouts on it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from oblr.batch.types import Rollout
from oblr.policy.fused import fuse
from oblr.problem import Completion, Problem

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
GIB = 2**30


def seconds(function: Callable[[], object]) -> float:
    """Of one call and all that it launches: by CUDA events on a GPU, else by the clock."""
    if not GPU:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def used_memory() -> float:
    """Of the GPU, by everybody, GiB."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def autocast(mixed: bool) -> AbstractContextManager[object]:
    """``trainer.precision=bf16-mixed``, or float32."""
    return torch.autocast(DEVICE.type, torch.bfloat16) if mixed else nullcontext()


def random_model(config: PretrainedConfig, attention: str, fused: bool) -> PreTrainedModel:
    """In float32 on the device, as a policy is trained; always the same one."""
    torch.manual_seed(0)
    with DEVICE:
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).train()
    if fused:
        fuse(lm)
    return lm


def random_rollouts(lengths: list[int], prompt: int, vocabulary: int) -> list[Rollout]:
    """Random tokens, as many a sequence as ``lengths`` say, ``prompt`` of them its prompt."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]
    return [
        Rollout(Problem("", "", ""), row[:prompt], Completion(row[prompt:], [0.0] * (len(row) - prompt), True), "", 0.0)
        for row in rows
    ]
