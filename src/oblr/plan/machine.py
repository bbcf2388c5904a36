"""How fast this machine's CPU is when it is asked, in five seconds."""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from oblr.batch.packing import pack
from oblr.gradnorm.measure import GradNorms
from oblr.plan.dry_run import DryRun
from oblr.plan.placement import DEVICE, HOST
from oblr.plan.roofline import Speed, predict
from oblr.plan.update import Batch, fake_model
from oblr.plan.work import Work
from oblr.policy.model import PolicyModel

#: Seconds before each update that is measured.
PAUSE = 0.05


def _config(hidden: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=2 * hidden,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        tie_word_embeddings=True,
    )


#: An update so small that it takes nothing but each operation's own time, and one whose activations fill no cache.
_TINY = _config(16), Batch(groups=1, group_size=4, longest=8, response=4)
_LARGE = _config(128), Batch(groups=10, group_size=8, longest=32, response=24)


def this_cpu() -> Speed:
    """Peaks of products and memory; an operation's own time; and what share of the peaks updates get."""
    x, y = torch.randn(2048, 384), torch.randn(384, 384)
    flops = 2 * x.numel() * len(y) / _seconds(lambda: x @ y, 20)
    bandwidth = 2 * x.nbytes / _seconds(lambda: x * 1.5, 20)
    speed = replace(Speed("this CPU", {"float32": flops}, bandwidth), launch=0, kernel=0, sync=0, serial=True)
    speed = replace(speed, products=1, attention=1, streams=1)
    work, seconds = _update(*_TINY, times=10)
    speed = replace(speed, launch=max(0.0, seconds - predict(work, speed).seconds) / work.total("launches"))
    work, seconds = _update(*_LARGE, times=5)
    predicted = predict(work, speed)
    share = sum(predicted.phases.values()) / max(seconds - predicted.launching, 0.1 * seconds)
    share = min(1.0, share)
    return replace(speed, products=share, attention=share, streams=share)


def _update(config: Qwen3Config, batch: Batch, times: int) -> tuple[Work, float]:
    """The work of an exact update of one micro-batch, counted, and its seconds, measured."""
    lengths = [batch.longest] * batch.groups * batch.group_size
    norms, rollouts, run = GradNorms("exact", "one"), batch.rollouts(lengths), DryRun()

    def update(model: PolicyModel, device: torch.device) -> None:
        packed = pack(rollouts).to(device)
        with norms.measure(model, model.lm, [packed], batch.group_size) as measured:
            measured.backward(torch.ones(len(lengths), dtype=torch.float64, device=device))

    counted = PolicyModel(fake_model(run, config, "float32"), 1.0)
    with run:
        update(counted, DEVICE)
    with torch.random.fork_rng():
        real = PolicyModel(Qwen3ForCausalLM(config).train(), 1.0)
    return run.device.work, _seconds(lambda: update(real, HOST), times, rest)


def rest() -> None:
    """As a rollout does: caches are another's, and cores have slept."""
    torch.ones(2**24).mul_(1.0)
    time.sleep(PAUSE)


def _seconds(function: Callable[[], object], times: int, before: Callable[[], object] = lambda: None) -> float:
    """Median, after a first time; of ``before``, which precedes each, none."""
    taken = []
    for _ in range(times + 1):
        before()
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return median(taken[1:])
