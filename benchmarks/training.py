"""Many training runs in one process, each what ``src/train.py`` would do; the rollout engine starts only once."""

import gc
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean

import hydra
import lightning as L
import torch
from figures import ROOT
from hydra import compose, initialize_config_dir
from lightning import Trainer
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from callbacks.evaluation import HeldOutEvaluation
from callbacks.grad_stats import GradStats
from callbacks.observer import Observer, rollout_data
from oblr.baselines.base import all_groups
from oblr.baselines.rloo import RLOOBaseline
from oblr.batch.types import RolloutBatch, Sampling, StepStatistics
from oblr.commands.compose import register_resolvers
from oblr.data.ends import end_tokens
from oblr.policy.loading import load_tokenizer
from oblr.policy.step import PolicyModule
from oblr.problem import Completion
from oblr.record.curves import read_curves
from oblr.rollout.datamodule import RolloutDataModule
from oblr.rollout.engine import Done, Engine
from oblr.rollout.readback import Block, Part
from oblr.run.terminal import quiet_terminal


@dataclass
class Record:
    """What a run leaves behind.

    Attributes:
        accuracy: held-out sampled accuracy (a graded reward's mean), by the steps before it.
        greedy: held-out accuracy of greedy responses after the last step; NaN where none were asked for.
        reward, lr, mean_square, square_mean: of every step; the latter two are the moments M1 and M2.
        best: of every step, the mean over prompts of the group's largest reward: pass@G of right and wrong answers.
        entropy: of every step, nats: the mean of −log μ over all sampled tokens.
        alignment: ``⟨ĝ_t, ĝ_(t−1)⟩`` of every step under SGD; NaN where either is 0, and under other optimizers.
        tokens: responses' tokens, of every step.
        rollout_seconds, update_seconds: CPU time of all rollouts, and of all updates.
        threads: of this process, by which CPU times differ.
        second_moment, rloo: sums of ``A_i² ρ_i² n_i`` over the steps with norms, with the run's advantages and RLOO's.
    """

    accuracy: dict[str, float] = field(default_factory=dict)
    greedy: float = math.nan
    reward: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    mean_square: list[float] = field(default_factory=list)
    square_mean: list[float] = field(default_factory=list)
    alignment: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    rollout_seconds: float = 0.0
    update_seconds: float = 0.0
    threads: int = field(default_factory=torch.get_num_threads)
    second_moment: float = 0.0
    rloo: float = 0.0


class Recorder(HeldOutEvaluation):
    """Fills a record. The norms that some baselines do without are measured inside, so that no cost contains them."""

    def __init__(self, every: int, samples: int, norms_every: int):
        super().__init__(every, samples)
        self.record, self.stats = Record(), GradStats(norms_every)
        self.last_step: Tensor | None = None
        self.mark = time.process_time()

    def lap(self) -> float:
        """CPU seconds since the last one."""
        before, self.mark = self.mark, time.process_time()
        return self.mark - before

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        self.record.rollout_seconds += self.lap()
        self.stats.on_rollouts(trainer, policy, batch)
        super().on_rollouts(trainer, policy, batch)
        self.before = parameters_to_vector(policy.parameters()).detach().clone()
        self.lap()

    def on_step(self, trainer: Trainer, policy: PolicyModule, stats: StepStatistics) -> None:
        record, batch = self.record, stats.batch
        record.update_seconds += self.lap()
        self.stats.on_step(trainer, policy, stats)
        record.reward.append(batch.rewards.mean().item())
        record.best.append(batch.rewards.amax(1).mean().item())
        record.entropy.append(-fmean(one for each in batch.rollouts for one in each.completion.logprobs))
        record.lr.append(stats.lr)
        record.mean_square.append(stats.moments.mean_square)
        record.square_mean.append(stats.moments.square_mean)
        record.tokens.append(int(batch.lengths.sum()))
        record.alignment.append(self.alignment(policy, stats.lr))
        weights = stats.square_norms * stats.ratios.square()
        known = weights.isfinite().all(1)
        rloo = RLOOBaseline()(replace(all_groups(stats), reward_weights=weights).of(known))
        record.second_moment += (stats.advantages[known].double().square() * weights[known]).sum().item()
        record.rloo += (rloo.double().square() * weights[known]).sum().item()
        self.lap()

    def alignment(self, policy: PolicyModule, lr: float) -> float:
        """Of the step just taken with the one before it: SGD's steps are its gradients, times the rate."""
        taken = (parameters_to_vector(policy.parameters()).detach() - self.before).double() / lr if lr else None
        last, self.last_step = self.last_step, taken
        sgd = isinstance(policy.optimizers().optimizer, torch.optim.SGD)
        known = sgd and taken is not None and last is not None and taken.any() and last.any()
        return taken.dot(last).item() if known else math.nan

    def evaluate(self, trainer: Trainer) -> None:
        sampling = replace(rollout_data(trainer).sampling, n=self.samples)
        self.record.accuracy[str(trainer.current_epoch)] = self.accuracy(trainer, sampling).mean
        if trainer.current_epoch == trainer.max_epochs:
            self.record.greedy = self.accuracy(trainer, replace(sampling, n=1, temperature=0.0)).mean


class KeptEngine:
    """An engine that has started and outlives the run that it is lent to."""

    def __init__(self, engine: Engine):
        self.engine, self.dtype, self.apart = engine, engine.dtype, engine.apart
        engine.start()

    @property
    def weight_version(self) -> int | None:
        return self.engine.weight_version

    def start(self) -> None:
        self.engine.weight_version = None  # those of another policy

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.engine.sync(weights, version)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Completion]]:
        return self.engine.generate(prompts, sampling, seeds, done)

    def read(self, blocks: Sequence[Block]) -> list[list[Part]]:
        return self.engine.read(blocks)

    def sleep(self) -> None:
        self.engine.sleep()

    def close(self) -> None:
        pass


#: Where experiments of studies are.
STUDIES = f"hydra.searchpath=['file://{ROOT}/studies/conf']"
#: Small policies, each with an experiment of its own; `studies/tasks.py` measures what they differ in.
TASKS = ("pocket", "pocket_graded", "pocket_rare", "pocket_long")


def composed(overrides: Sequence[str], experiment: str = "pocket") -> DictConfig:
    """The configuration of ``python src/train.py experiment=…`` with these overrides."""
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=[f"experiment={experiment}", STUDIES, *overrides])


def typed(folder: Path, *overrides: str) -> dict[str, Sequence[float]]:
    """The curves of ``python src/train.py experiment=pocket`` with these overrides, a process of its own."""
    command = [sys.executable, "src/train.py", "experiment=pocket", f"paths.output_dir={folder}", *overrides]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return {tag: values for tag, (_, values) in read_curves(folder).items()}


@cache
def engine(experiment: str, name: str) -> KeptEngine:
    """This process's engine of that name for a task."""
    cfg = composed(["paths.output_dir=unused"], experiment)
    return KeptEngine(hydra.utils.instantiate(cfg.rollout.engines[name])())


def train(overrides: Sequence[str], experiment: str, every: int, norms_every: int) -> Record:
    """One run. It is evaluated every so many steps and at its end, two responses to each problem.

    Args:
        norms_every: steps after which norms are known at least.
    """
    recorder = Recorder(every, 2, norms_every)
    observed(overrides, recorder, experiment)
    return recorder.record


def observed(
    overrides: Sequence[str],
    observer: Observer,
    experiment: str,
    change: Callable[[PolicyModule, RolloutDataModule], None] = lambda policy, data: None,
) -> None:
    """One run with one observer; ``change`` may alter policy and rollouts before it begins."""
    gc.collect()  # the last run's policy, which lies in circles
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cfg = composed([*overrides, f"paths.output_dir={folder}"], experiment)
        with quiet_terminal(folder / "log"):
            policy = hydra.utils.instantiate(cfg.policy, _convert_="all")
            tokenizer = load_tokenizer(cfg.policy.path)
            told = {"tokenizer": tokenizer, "end_ids": end_tokens(cfg.policy.path, tokenizer)}
            data = hydra.utils.instantiate(cfg.rollout, **told, _convert_="all")
            data.engine, data.weights, data.clock = engine(experiment, cfg.rollout.engine), policy.weights, policy.clock
            data.greedy = policy.baseline.needs_greedy
            change(policy, data)
            L.seed_everything(cfg.seed)
            settings = {"callbacks": [observer], "logger": False, "enable_checkpointing": False}
            hydra.utils.instantiate(cfg.trainer, **settings).fit(policy, datamodule=data)
