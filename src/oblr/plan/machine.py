"""How fast this machine's CPU is when it is asked, in a second or two."""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from oblr.gradnorm.measure import GradNorms
from oblr.model import TokenScorer
from oblr.packing import pack
from oblr.plan.dry_run import DryRun
from oblr.plan.places import DEVICE, HOST
from oblr.plan.roofline import Speed, predict
from oblr.plan.update import Batch, fake_model

#: So small that an update takes nothing but each operation's own time.
_TINY = Qwen3Config(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    tie_word_embeddings=True,
)
_BATCH = Batch(groups=1, group_size=4, longest=8, response=4)


def this_cpu() -> Speed:
    """What products, reading and writing, and an operation in itself take here, through Python and autograd."""
    x, y = torch.randn(2048, 384), torch.randn(384, 384)
    flops = 2 * x.numel() * len(y) / _seconds(lambda: x @ y, 30)
    # Into memory that is new, as activations are.
    bandwidth = 2 * x.nbytes / _seconds(lambda: x * 1.5, 30)
    shares = {"products": 1.0, "attention": 1.0, "streams": 1.0}  # of what was measured
    speed = Speed("this CPU", {"float32": flops}, bandwidth, **shares, launch=0, kernel=0, sync=0, serial=True)
    return replace(speed, launch=_launch(speed))


def _launch(speed: Speed) -> float:
    """Seconds of an operation: those of a tiny update, by the operations that are counted in it."""
    norms, rollouts = GradNorms("exact", "one"), _BATCH.rollouts([_BATCH.longest] * _BATCH.group_size)

    def update(scorer: TokenScorer, device: torch.device) -> None:
        packed = pack(rollouts).to(device)
        with norms.score(scorer, scorer.lm, [packed], _BATCH.group_size) as scores:
            scores.backward(torch.ones(_BATCH.group_size, dtype=torch.float64, device=device))

    run = DryRun()
    counted = TokenScorer(fake_model(run, _TINY, "float32"), 1.0)
    with run:
        update(counted, DEVICE)
    with torch.random.fork_rng():
        real = TokenScorer(Qwen3ForCausalLM(_TINY).train(), 1.0)
    seconds = _seconds(lambda: update(real, HOST), 10) - predict(run.work, speed).seconds
    return max(0.0, seconds) / run.work.total("launches")


def _seconds(function: Callable[[], object], times: int) -> float:
    """Median, after a first time."""
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return median(taken[1:])
