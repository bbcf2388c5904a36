"""Accuracy, or mean reward, on problems that are never trained on."""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from lightning import LightningModule, Trainer

from callbacks.observer import Observer, log_now, rollout_data
from oblr.batch.types import RolloutBatch, Sampling
from oblr.kinds import Count, Few, Seed
from oblr.metrics.accuracy import ProblemAccuracy, figure
from oblr.metrics.aggregate import Interval
from oblr.policy.step import PolicyModule
from oblr.run.randomness import derived_seed
from oblr.run.ranks import of_run


class Evaluation(Observer, ABC):
    """Evaluates before the first step, every so many, and after the last."""

    def __init__(self, every: Count):
        self.every = every

    @abstractmethod
    def evaluate(self, trainer: Trainer) -> None:
        """All ranks call it together; the engine gets the policy's weights where it has not got them."""

    def on_rollouts(self, trainer: Trainer, policy: PolicyModule, batch: RolloutBatch) -> None:
        if trainer.current_epoch % self.every == 0:
            with policy.clock.phase("evaluation"):
                self.evaluate(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.should_stop:  # who stops a run before its end waits for it
            self.evaluate(trainer)


class HeldOutEvaluation(Evaluation):
    """Greedy and sampled accuracy with 95 % intervals; mean reward, once a reward was neither 0 nor 1.

    Args:
        every: steps between evaluations.
        samples: responses per problem of the sampled accuracy, at the training temperature.
        seed: of the sampling, the same at every evaluation.
    """

    def __init__(self, every: Count, samples: Few = 4, seed: Seed = 0):
        super().__init__(every)
        self.samples, self.seed = samples, seed
        self.best, self.graded = -math.inf, False

    def evaluate(self, trainer: Trainer) -> None:
        sampled = replace(rollout_data(trainer).sampling, n=self.samples)
        results = {
            "greedy": self.accuracy(trainer, replace(sampled, n=1, temperature=0.0)),
            "sampled": self.accuracy(trainer, sampled),
        }
        self.best = max(self.best, results["sampled"].mean)
        rollout_data(trainer).engine.sleep()
        metrics = {
            f"eval/{kind}_{end}": value
            for kind, interval in results.items()
            for end, value in zip((figure(self.graded), "low", "high"), interval, strict=True)
            if math.isfinite(value)
        }
        log_now(trainer, metrics | {"eval/best": self.best})

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "graded": self.graded}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]
        self.graded = state_dict.get("graded", False)  # which older ones do not have

    def accuracy(self, trainer: Trainer, sampling: Sampling) -> Interval:
        data = rollout_data(trainer)
        mine = range(len(data.held_out))[trainer.global_rank :: trainer.world_size]
        seeds = [derived_seed("evaluation", self.seed, i) for i in mine]
        rollouts = data.rollouts([data.held_out[i] for i in mine], sampling, seeds)
        metric = ProblemAccuracy()
        for rewards in of_run().objects([rollout.reward for rollout in rollouts]):
            metric.update(torch.tensor(rewards).view(-1, sampling.n))
        self.graded |= bool(metric.graded)
        return metric.compute()
