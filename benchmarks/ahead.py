"""How long is a step whose rollouts are sampled while the policy trains, over one that waits for them?

    python benchmarks/ahead.py [--quick]

A vLLM server samples for the pocket policy, and this process trains it, each with one thread. The policy has a larger
shape that computes the same function (``grown.py``), and vLLM's engine and worker are one process: else these pass
messages rather than sample. As many responses are sampled at once as make both take about as long. Each round has a run
without ``rollout.ahead``, one with 1 and one with 2, in turn, and the same with a reward that sleeps, which makes all
responses of a step take as long as its update: no processor works meanwhile, so this is what waiting costs. A run's
time is the median of its steps, after those at its start and its end that are not like the others. Ratios are paired,
round by round; figures are written after each, so a stopped measurement keeps what it has. This process and the one
that scores have one core, the server has the others.
For H100s the plan tells: Qwen3-8B by ``experiment=oblr_qwen3_8b``, half of 8 and of 16 GPUs for the server.
``--quick``: a round of a few small steps, with the slow reward alone.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import hydra
import lightning as L
import torch
from figures import Figure, asked_to_be_quick, median_ratio, write
from grown import POCKET, grow
from hydra.types import RunMode
from lightning import Trainer
from training import KeptEngine, composed
from transformers import AutoConfig

from callbacks.observer import Observer
from oblr.batch.types import StepStatistics
from oblr.commands.compose import composer
from oblr.commands.plan import draft
from oblr.data.ends import end_tokens
from oblr.plan.roofline import GPUS
from oblr.policy.loading import load_tokenizer
from oblr.policy.step import PolicyModule
from oblr.run.terminal import quiet_terminal

AHEAD = (0, 1, 2)
#: Steps of a run that are not timed: the first rollouts are waited for, and beside the last updates nothing is sampled.
FIRST, LAST = 3, max(AHEAD)
#: What figures of runs with a slow reward begin with.
SLOW = "slow reward: "
#: The policy's shape: 3 M parameters.
SHAPE = {"hidden_size": 256, "intermediate_size": 768, "head_dim": 64}
BASE = ("rollout.engine=server", "rollout.reward_pool.trust=true", "rollout.reward_pool.workers=1", "reward=exact")


class Watch(Observer):
    """Seconds of each step, and of its phases."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.phases: list[dict[str, float]] = []
        self.last = time.perf_counter()

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        now = time.perf_counter()
        self.steps.append(now - self.last)
        self.phases.append(policy.clock.reset())
        self.last = now

    def median(self, *phases: str) -> float:
        """Of the steps that are like each other: whole, or of these phases alone."""
        seconds = [sum(of[phase] for phase in phases if phase in of) for of in self.phases] if phases else self.steps
        return median(seconds[FIRST:-LAST])


def run(engine: KeptEngine, ahead: int, steps: int, pause: float, overrides: tuple[str, ...]) -> Watch:
    """One run, whose reward sleeps for ``pause`` seconds a response."""
    with tempfile.TemporaryDirectory() as name:
        folder, watch = Path(name), Watch()
        cfg = composed([*BASE, *overrides, f"rollout.ahead={ahead}", f"steps={steps}", f"paths.output_dir={folder}"])
        if pause:
            cfg.rollout.reward = {"_target_": "slow.Slow", "reward": "${reward}", "seconds": pause}
        with quiet_terminal(folder / "log"):
            policy = hydra.utils.instantiate(cfg.policy, _convert_="all")
            tokenizer = load_tokenizer(cfg.policy.path)
            told = {"tokenizer": tokenizer, "end_ids": end_tokens(cfg.policy.path, tokenizer)}
            data = hydra.utils.instantiate(cfg.rollout, **told, _convert_="all")
            data.engine, data.weights, data.clock = engine, policy.weights, policy.clock
            L.seed_everything(cfg.seed)
            settings = {"callbacks": [watch], "logger": False, "enable_checkpointing": False}
            hydra.utils.instantiate(cfg.trainer, **settings).fit(policy, datamodule=data)
    return watch


def turns(engine: KeptEngine, number: int, steps: int, pause: float, overrides: tuple[str, ...]) -> dict[int, Watch]:
    """A run of each kind, in an order that changes from round to round."""
    found = {of: run(engine, of, steps, pause, overrides) for of in (AHEAD if number % 2 == 0 else AHEAD[::-1])}
    return {of: found[of] for of in AHEAD}


def measured(reward: str, taken: Sequence[dict[int, Watch]]) -> Iterator[Figure]:
    """What the rounds with this reward have shown."""
    for ahead in AHEAD:
        middle = median(watches[ahead].median() for watches in taken)
        yield Figure(f"{reward}step with ahead={ahead}, median", middle, "s")
    for what, phases in (("rollouts and rewards", ("rollout", "reward")), ("update", ("update",))):
        middle = median(watches[0].median(*phases) for watches in taken)
        yield Figure(f"{reward}{what} of a step without, median", middle, "s")
    for ahead in AHEAD[1:]:
        ratios = [watches[ahead].median() / watches[0].median() for watches in taken]
        most = {"": {1: 0.75}, SLOW: {1: 0.8}}[reward].get(ahead)
        yield median_ratio(f"{reward}step with ahead={ahead} / without", ratios, "", most=most)


def predicted(halves: Sequence[int]) -> Iterator[Figure]:
    """Seconds of a step by the plan, with and without, where as many GPUs serve as train."""
    with composer() as compose:
        for half in halves:
            serving = ",".join(str(half + gpu) for gpu in range(half))
            apart = f"trainer.devices={half}", "rollout.engine=server", f"rollout.engines.server.gpus='{serving}'"
            steps = {}
            for ahead in (0, 1):
                overrides = ["experiment=oblr_qwen3_8b", *apart, f"rollout.ahead={ahead}", "paths.output_dir=unused"]
                steps[ahead] = draft(compose("train", overrides, RunMode.RUN), GPUS["h100"]).duration.step
            name = f"Qwen3-8B on {half} + {half} H100s, predicted"
            yield Figure(f"{name}: step without", steps[0], "s")
            yield Figure(f"{name}: step with ahead=1 / without", steps[1] / steps[0], "")


def main() -> None:
    quick = asked_to_be_quick(__doc__)
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["OMP_NUM_THREADS"] = "1"  # of the server
    torch.set_num_threads(1)
    count, steps = (1, FIRST + 1 + LAST) if quick else (9, FIRST + 5 + LAST)
    few = ("rollout.prompts_per_step=2",) if quick else ()
    cores = sorted(os.sched_getaffinity(0))
    plan = list(predicted(() if quick else (4, 8)))
    with tempfile.TemporaryDirectory() as name:
        policy = Path(name, "policy")
        grow(AutoConfig.from_pretrained(POCKET, **SHAPE), policy, torch.float32)
        overrides = (*few, f"policy.path={policy}")
        at_once = "rollout.engines.server.max_num_seqs=32"
        cfg = composed([*BASE, *overrides, at_once, f"paths.output_dir={name}"])
        server = hydra.utils.instantiate(cfg.rollout.engines.server)()
        server.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.sched_setaffinity(0, cores[1:] or cores)
        engine = KeptEngine(server)
        os.sched_setaffinity(0, cores[:1])
        if quick:
            rewards = {SLOW: 0.01}
        else:
            warm = run(engine, 0, steps, 0.0, overrides)
            rewards = {"": 0.0, SLOW: warm.median("update") / (cfg.rollout.prompts_per_step * cfg.rollout.group_size)}
        taken: dict[str, list[dict[int, Watch]]] = {reward: [] for reward in rewards}
        for number in range(count):
            for reward, slept in rewards.items():
                taken[reward].append(turns(engine, number, steps, slept, overrides))
            figures = [figure for reward, rounds in taken.items() for figure in measured(reward, rounds)]
            seconds = {
                reward or "fast": [{str(ahead): watch.steps for ahead, watch in one.items()} for one in rounds]
                for reward, rounds in taken.items()
            }
            write("ahead-quick" if quick else "ahead", [*plan, *figures], rounds=[seconds])
        server.close()


if __name__ == "__main__":
    main()
