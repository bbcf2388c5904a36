"""How long do updates take, how much memory, which MFU? Beside what the roofline says of them.

A micro-batch of 8,192 tokens of real shapes with random weights. Kinds take turns, round after round. Predictions are
counted afterwards, by processes that see no GPU: a host that counts meanwhile launches too slowly.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from statistics import median

import torch
from figures import Figure
from gpu_device import DEVICE, GIB, GPU, autocast, random_model, random_rollouts, seconds
from roofline import BATCHES, CALIBRATED, KINDS, PROMPT, TOKENS, Case, Count, policy, shape

from oblr.batch.packing import pack
from oblr.gradnorm.measure import GradNorms
from oblr.gradnorm.precision import no_autocast, rounded_once
from oblr.plan.machine import this_cpu
from oblr.plan.roofline import GPUS, Speed, model_flops, predict
from oblr.plan.update import Batch, World, plan_update
from oblr.policy.attention import choose_attention
from oblr.policy.model import PolicyModel

WARM_UP, ROUNDS, WORKERS = 2, 5, 6
Update = Callable[[], None]


def speed_of(device: str) -> Speed | None:
    """The GPU of that name, where its speed is known."""
    return next((speed for name, speed in GPUS.items() if name in device.lower()), None)


def kinds_of(size: str, checkpointing: bool) -> list[str]:
    return [kind for kind in KINDS if size == "4B" or kind in CALIBRATED if not checkpointing or "sketch" not in kind]


def updates(model: PolicyModel, batch: Batch, kinds: list[str], mixed: bool) -> dict[str, Update]:
    """Every kind on one micro-batch; each adds to ``.grad``, and rounds the weights for itself."""
    lengths, prompt = batch.full(TOKENS), batch.longest - batch.response
    packed = pack(random_rollouts(lengths, prompt, model.lm.config.vocab_size)).to(DEVICE)

    def plain() -> None:
        with autocast(mixed):
            function = model(packed).logprobs.sum()
            with no_autocast(function):
                function.backward()

    def ours(kind: str) -> Update:
        norms, ones = GradNorms(*KINDS[kind]), torch.ones(len(lengths), dtype=torch.float64, device=DEVICE)

        def update() -> None:
            scored = norms.measure(model, model.lm, [packed], batch.group_size)
            with autocast(mixed), rounded_once(), scored as measured:
                measured.backward(ones)

        return update

    return {kind: plain if kind == "plain" else ours(kind) for kind in kinds}


def timed(model: PolicyModel, kinds: dict[str, Update]) -> tuple[dict[str, float], dict[str, float], list[str]]:
    """Median seconds and GiB at the peak of each kind that fits; and those that do not."""
    taken: dict[str, list[float]] = {}
    peaks, too_large = {}, []
    for kind, update in kinds.items():
        try:
            for _ in range(WARM_UP):
                if GPU:
                    torch.cuda.reset_peak_memory_stats()
                update()
            peaks[kind] = torch.cuda.max_memory_allocated() / GIB if GPU else 0.0
            taken[kind] = []
        except torch.cuda.OutOfMemoryError:
            too_large.append(kind)
        if GPU:
            torch.cuda.empty_cache()
    for _ in range(ROUNDS):
        for kind, times in taken.items():
            model.zero_grad(set_to_none=False)
            times.append(seconds(kinds[kind]))
    return {kind: median(times) for kind, times in taken.items()}, peaks, too_large


def hide_gpus() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)


def of_shape(
    size: str, tokens: str, checkpointing: bool, pool: Executor, speed: Speed | None
) -> Iterator[Figure | str]:
    cases = {kind: Case(size, tokens, kind, checkpointing) for kind in kinds_of(size, checkpointing)}
    config = next(iter(cases.values())).config
    attention = choose_attention(config, GPU, torch.bfloat16)
    yield f"attention: {attention}"
    if find_spec("liger_kernel") is None:
        yield "liger-kernel is not installed: rotary embeddings and SwiGLU are not fused, though predicted so"
    model = PolicyModel(random_model(config, attention, fused=True), 1.0)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    if checkpointing:
        model.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    lengths = BATCHES[tokens].full(TOKENS)
    times, peaks, too_large = timed(model, updates(model, BATCHES[tokens], list(cases), True))
    flops = model_flops(config, lengths, sum(lengths) - PROMPT * len(lengths))
    for kind, time in times.items():
        name = cases[kind].name
        yield Figure(f"{name}: measured", 1e3 * time, "ms")
        if "plain" in times:
            yield Figure(f"{name}: measured over plain", time / times["plain"], "× plain")
        yield Figure(f"{name}: peak memory", peaks[kind], "GiB")
        if speed:
            yield Figure(f"{name}: MFU", flops / time / speed.peak, "")
    for kind in too_large:
        yield f"{cases[kind].name}: does not fit"
    counts: dict[str, Future[Count]] = {kind: pool.submit(cases[kind].count) for kind in times} if speed else {}
    if not speed:
        yield f"nothing is predicted: the speed of {torch.cuda.get_device_name()} is not known"
    for kind, time in times.items() if speed else ():
        name, count = cases[kind].name, counts[kind].result()
        yield Figure(f"{name}: predicted", 1e3 * count.seconds(speed), "ms")
        yield Figure(f"{name}: predicted / measured", count.seconds(speed) / time, "")
        yield Figure(f"{name}: peak memory, predicted / measured", count.planned.peak.total() / GIB / peaks[kind], "")


def on_cpu() -> Iterator[Figure | str]:
    """The same in small: float32, and as fast as this CPU is just now."""
    config, batch, speed = shape(128, 4, 512, True), Batch(2, 4, 48, 32), this_cpu()
    lengths, kinds = batch.full(TOKENS), ["plain", "exact, one pass"]
    model = PolicyModel(random_model(config, choose_attention(config, GPU, torch.float32), fused=False), 1.0)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    times, _, _ = timed(model, updates(model, batch, kinds, False))
    for kind, time in times.items():
        work = plan_update(policy(kind, sum(lengths)), config, World(gpu=False), batch).work
        yield Figure(f"CPU, T=48: {kind}: measured", 1e3 * time, "ms")
        yield Figure(f"CPU, T=48: {kind}: MFU", model_flops(config, lengths, 32 * len(lengths)) / time / speed.peak, "")
        yield Figure(f"CPU, T=48: {kind}: predicted / measured", predict(work, speed).seconds / time, "")


def measure(quick: bool, size: str, tokens: str, checkpointing: str = "") -> Iterator[Figure | str]:
    if quick:
        yield from on_cpu()
        return
    with ProcessPoolExecutor(WORKERS, get_context("spawn"), hide_gpus) as pool:
        yield from of_shape(size, tokens, bool(checkpointing), pool, speed_of(torch.cuda.get_device_name()))
