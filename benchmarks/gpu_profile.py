"""Where do an update's seconds go? By kind of operation, beside what the roofline says of each; and the host's."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from figures import Figure
from gpu_device import GPU, random_model
from gpu_updates import hide_gpus, speed_of, updates
from roofline import BATCHES, Case, Count, policy, shape
from torch.profiler import ProfilerActivity, profile

from oblr.plan.machine import this_cpu
from oblr.plan.roofline import Speed, predict
from oblr.plan.update import Batch, World, plan_update
from oblr.plan.work import Work
from oblr.policy.attention import choose_attention
from oblr.policy.model import PolicyModel

PROFILED = ("plain", "exact, one pass", "sketch, one pass")
LARGEST = 20


def kind_of(name: str) -> str:
    """Products, attention, or what memory bounds; of an operation's name, as dispatcher and profiler know it."""
    name = name.lower()
    if "attention" in name or "attn" in name:
        return "attention"
    return "products" if name.removeprefix("aten::") in ("mm", "bmm", "addmm", "addbmm", "baddbmm") else "the rest"


def predicted(work: Work, speed: Speed) -> Counter[str]:
    """Seconds by kind."""
    found: Counter[str] = Counter()
    for op, n in work.ops.items():
        one = predict(Work(Counter({op: n})), speed).phases
        found[kind_of(op.name)] += sum(one.values())  # type: ignore[assignment]
    return found


def finish() -> None:
    if GPU:
        torch.cuda.synchronize()


def own_seconds(row: Any) -> float:
    return 1e-6 * (row.self_device_time_total if GPU else row.self_cpu_time_total)


def count(tokens: str, kind: str) -> Count:
    return Case("4B", tokens, kind).count()


def measure(quick: bool, tokens: str) -> Iterator[Figure | str]:
    config = shape(128, 4, 512, True) if quick else Case("4B", tokens, "plain").config
    batch = Batch(2, 4, 48, 32) if quick else BATCHES[tokens]
    attention = choose_attention(config, GPU, torch.bfloat16 if GPU else torch.float32)
    model = PolicyModel(random_model(config, attention, fused=GPU), 1.0)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * GPU]
    found: dict[str, Counter[str]] = {}
    for kind, update in updates(model, batch, list(PROFILED), GPU).items():
        for _ in range(2):
            update()
        finish()
        label = f"profile, {'CPU' if quick else f'4B, T={tokens}'}: {kind}"
        start = time.perf_counter()
        update()
        yield Figure(f"{label}: until the host was done", 1e3 * (time.perf_counter() - start), "ms")
        finish()
        yield Figure(f"{label}: whole", 1e3 * (time.perf_counter() - start), "ms")
        with profile(activities=activities) as recorded:
            update()
            finish()
        rows = sorted(recorded.key_averages(), key=own_seconds, reverse=True)
        found[kind] = Counter()
        for row in rows:
            if row.key.startswith("aten::") or "Backward" in row.key or not GPU:  # kernels are counted with these
                found[kind][kind_of(row.key)] += own_seconds(row)  # type: ignore[assignment]
        yield Figure(f"{label}: kernels", float(sum(row.count for row in rows if row.device_type.name == "CUDA")), "")
        for row in rows[:LARGEST]:
            yield f"{kind}: {1e3 * own_seconds(row):.1f} ms in {row.count} of {row.key[:80]}"
    speed = speed_of(torch.cuda.get_device_name()) if GPU else this_cpu()
    if speed is None:
        return
    with ProcessPoolExecutor(len(PROFILED), get_context("spawn"), hide_gpus) as pool:
        for kind, measured in found.items():
            if quick:
                work = plan_update(policy(kind, sum(batch.full(8192))), config, World(gpu=False), batch).work
            else:
                work = pool.submit(count, tokens, kind).result().work
            label = f"profile, {'CPU' if quick else f'4B, T={tokens}'}: {kind}"
            for name, seconds in predicted(work, speed).items():
                yield Figure(f"{label}: {name}", 1e3 * measured[name], "ms")
                yield Figure(f"{label}: {name}, predicted", 1e3 * seconds, "ms")
