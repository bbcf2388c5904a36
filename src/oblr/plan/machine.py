"""How fast this machine's CPU is when it is asked, in a second or two."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.gradnorm.measure import GradNorms
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.model import TokenScorer
from oblr.packing import pack
from oblr.plan.roofline import Speed, predict
from oblr.plan.update import Batch, World, plan_update
from oblr.policy import PolicyModule
from oblr.schedules.constant import ConstantSchedule

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
    lengths, norms = [_BATCH.longest] * _BATCH.group_size, GradNorms("exact", "one")
    policy = PolicyModule(
        path="",
        dtype="float32",
        gradnorm=norms,
        baseline=GradientWeightedBaseline(),
        loss=PolicyGradientLoss("none"),
        schedule=ConstantSchedule(1.0),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        temperature=1.0,
        token_budget=sum(lengths),
        logprob_gap_mean=1.0,
        logprob_gap_p99=1.0,
    )
    work = plan_update(policy, _TINY, World(gpu=False), _BATCH).work
    with torch.random.fork_rng():
        scorer = TokenScorer(Qwen3ForCausalLM(_TINY).train(), 1.0)
    rollouts = _BATCH.rollouts(lengths)

    def update() -> None:
        with norms.score(scorer, scorer.lm, [pack(rollouts)], _BATCH.group_size) as scores:
            scores.backward(torch.ones(len(lengths), dtype=torch.float64))

    return max(0.0, _seconds(update, 10) - predict(work, speed).seconds) / work.total("launches")


def _seconds(function: Callable[[], object], times: int) -> float:
    """Median, after a first time."""
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return median(taken[1:])
